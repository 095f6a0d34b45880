"""Count and time the batches that a program takes from its loaders, by one rule for torch's and ours.

Waiting is the time in `iter(loader)` and in `next()` of its result. The rest, from the first `iter()` on, is the program's own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import default_collate

from penstock.client.advice import advice_on
from penstock.loader import DataLoader
from penstock.measure.counters import Counters
from penstock.measure.trace import described, write_trace
from penstock.pipeline.adopt import adoption

REFRESH_S = 0.2


class Enough(BaseException):
    """The program has had its steps. Not an Exception, so that training loops do not treat it as a failure."""


@dataclass(slots=True)
class Record:
    """Facts about one loader; they outlive it."""

    name: str
    batches: int = 0
    stats: dict[str, Any] | None = None
    """Stats of a penstock loader."""
    counters: Counters | None = None
    """Counters of a penstock loader whose tasks and waits are kept."""
    adoption: str = ""
    """Whether its torchvision dataset is adopted."""

    def write_trace(self, path: str | os.PathLike[str]) -> bool:
        """Write the trace; return False if there is none: torch's own loader keeps nothing."""
        if self.counters is None or self.stats is None:
            return False
        write_trace(path, self.counters, described(self.stats, self.diagnosis()))
        return True

    def diagnosis(self) -> str:
        return "" if self.stats is None else advice_on(self.stats)


@dataclass(slots=True)
class LoaderMeter:
    """Sums over all loaders of this process."""

    steps: int | None = None
    """Stop the program after this many batches."""
    traced: bool = False
    """Whether to keep tasks and waits of our loaders for a trace."""
    on_progress: Callable[[LoaderMeter], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    batches: int = 0
    samples: int = 0
    wait_s: float = 0.0
    first_s: float | None = None
    """When the program first called `iter()`."""
    first_batch_s: float = 0.0
    """How long it waited for its first batch."""
    last_s: float = 0.0
    records: list[Record] = field(default_factory=list)
    _known: WeakKeyDictionary[Any, Record] = field(default_factory=WeakKeyDictionary)
    _shown_s: float = 0.0

    @property
    def elapsed_s(self) -> float:
        return 0.0 if self.first_s is None else self.last_s - self.first_s

    def facts(self) -> dict[str, float]:
        elapsed_s = max(self.elapsed_s, 1e-9)
        return {
            "batches": self.batches,
            "samples": self.samples,
            "elapsed_s": self.elapsed_s,
            "samples_per_s": self.samples / elapsed_s,
            "wait_share": min(1.0, self.wait_s / elapsed_s),
            "first_batch_s": self.first_batch_s,
        }

    def busiest(self) -> Record | None:
        """Return the loader with the most batches."""
        return max(self.records, key=lambda record: record.batches, default=None)

    def install(self, kind: type) -> None:
        """Measure all loaders of this class and its subclasses."""
        original = kind.__iter__  # type: ignore[attr-defined]

        def metered(loader: TorchDataLoader[Any]) -> Metered:
            began_s = self.clock()
            if self.first_s is None:
                self.first_s = began_s
            record = self._record(loader)
            batches = original(loader)
            self._waited(began_s)
            return Metered(batches, loader, record, self)

        kind.__iter__ = metered  # type: ignore[attr-defined]

    def _record(self, loader: TorchDataLoader[Any]) -> Record:
        if loader not in self._known:
            ours = isinstance(loader, DataLoader) and loader.adopt
            said = adoption(loader.dataset) if ours else ""
            self._known[loader] = Record(name_of(loader), adoption=said)
            self.records.append(self._known[loader])
            if self.traced and isinstance(loader, DataLoader):
                self._known[loader].counters = loader._counters
                loader._counters.trace = True
        return self._known[loader]

    def _waited(self, began_s: float) -> None:
        self.last_s = self.clock()
        self.wait_s += self.last_s - began_s

    def take(self, batches: Iterator[Any], loader: TorchDataLoader[Any], record: Record) -> Any:
        """Take the next batch and measure it."""
        began_s = self.last_s = self.clock()
        if self.steps is not None and self.batches >= self.steps:
            self._look(loader, record)
            raise Enough
        try:
            batch = next(batches)
        except StopIteration:
            self._look(loader, record)
            raise
        self._waited(began_s)
        if not self.batches and self.first_s is not None:
            self.first_batch_s = self.last_s - self.first_s
        self.batches += 1
        record.batches += 1
        self.samples += samples_in(batch, loader)
        if self.last_s - self._shown_s >= REFRESH_S:
            self._shown_s = self.last_s
            self._look(loader, record)
            self.on_progress(self)
        return batch

    def _look(self, loader: TorchDataLoader[Any], record: Record) -> None:
        """Keep a loader's own numbers: the program may drop it at any time."""
        if isinstance(loader, DataLoader):
            record.stats = loader.stats()


class Metered:
    """A measured iterator over batches; everything else is delegated to the loader's own."""

    def __init__(
        self, batches: Iterator[Any], loader: TorchDataLoader[Any], record: Record, meter: LoaderMeter
    ) -> None:
        self._batches, self._loader, self._record, self._meter = batches, loader, record, meter

    def __iter__(self) -> Metered:
        return self

    def __next__(self) -> Any:
        return self._meter.take(self._batches, self._loader, self._record)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def name_of(loader: TorchDataLoader[Any]) -> str:
    return f"{type(loader.dataset).__name__}, {nominal_size(loader)} a batch, {loader.num_workers} workers"


def samples_in(batch: Any, loader: TorchDataLoader[Any]) -> int:
    """Count samples by the first tensor if torch collated; another collate's result may mean anything."""
    if loader.collate_fn is default_collate and (tensor := first_tensor(batch)) is not None:
        return int(tensor.shape[0]) if tensor.dim() else 1
    return nominal_size(loader)


def nominal_size(loader: TorchDataLoader[Any]) -> int:
    return int(loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or 1)


def first_tensor(batch: Any) -> torch.Tensor | None:
    if isinstance(batch, torch.Tensor):
        return batch
    parts = (
        batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    )
    return next((tensor for part in parts if (tensor := first_tensor(part)) is not None), None)
