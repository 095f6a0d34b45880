"""The command line: `penstock run train.py …`."""
