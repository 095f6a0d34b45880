"""Preparation on the GPU: what workers leave to it, and how it finishes that."""
