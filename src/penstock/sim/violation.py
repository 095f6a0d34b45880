"""What the simulator raises when the core breaks a promise."""

from __future__ import annotations


class Violation(AssertionError):
    """The core broke a promise; the text says which."""
