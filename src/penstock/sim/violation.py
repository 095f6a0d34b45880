"""The simulator's error for a broken promise."""

from __future__ import annotations


class Violation(AssertionError):
    """The core broke a promise; the text says which."""
