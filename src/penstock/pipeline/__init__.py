"""Staged datasets: bytes, decode, a chain of ops with an identity and a cost."""
