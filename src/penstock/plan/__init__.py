"""The plan: which sample stands where in an epoch, and the seeds of its randomness. Pure functions of values."""
