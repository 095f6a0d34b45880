"""The training process: asks for batches, waits, hands them out, and copies them to a device."""
