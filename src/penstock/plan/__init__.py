"""The plan of an epoch: which sample stands where, and its seeds. Pure functions of values."""
