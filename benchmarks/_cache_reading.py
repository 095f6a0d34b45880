"""What one measurement of the byte cache reads, and how. Subjects and the measuring process share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The samples, their store, and the loader's settings of a measurement."""

    where: str
    """Of samples or photos, as the subject names them."""
    batch: int
    workers: int
    epochs: int = 1
    seconds: float = 0.0
    """After which an epoch is broken off; 0: never."""
    samples: int = 0
    """0: photos."""
    mean: int = 0
    cache_bytes: int = 0
    """0: no cache."""
    local: str = ""
    """A folder for those who cache on disk."""
    control: str = ""
    """Of the store, to count what it served."""
    cores: tuple[int, ...] = ()


Epoch = Callable[[int], Iterator[int]]
"""Runs an epoch; yields each batch's number of samples."""
