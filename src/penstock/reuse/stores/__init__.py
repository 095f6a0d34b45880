"""Stores of partly prepared samples: in memory, on disk, on a GPU."""
