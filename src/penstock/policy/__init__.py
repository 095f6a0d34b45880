"""Decisions as functions from values to values. Nothing here imports torch, threads, files or clocks."""
