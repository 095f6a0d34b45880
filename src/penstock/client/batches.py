"""What all of a loader's iterators have in common, whoever prepares the batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from penstock.epochs.progress import Run


class Batches:
    """`run` is told each batch that goes out, `on_end` that the epoch is over; `before_first` is called once, before the first batch."""

    def __init__(self) -> None:
        self.run = Run("planned", 0, 0)
        self.on_end: Callable[[], None] = lambda: None
        self.length: Callable[[], int] = lambda: 0
        self.before_first: Callable[[], None] | None = None

    def _is_asked(self) -> None:
        """For the next batch: so the last one counts."""
        self.run.count()  # guard: count-delivered
        if self.before_first is not None:
            self.before_first()
            self.before_first = None

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return self.length()

    def __getstate__(self) -> Any:
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)
