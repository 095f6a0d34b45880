"""The process that `penstock profile` measures: `python -m penstock.cli.profiled JOB [-m] SCRIPT …`.

The program's first loader that has delivered a few batches is measured, from within its loop: `next()` measures local workers, then
hands out batches that are here already while training is measured, then measures remote workers. The loop's epoch never ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from penstock.cli.meter import Enough
from penstock.cli.program import Program
from penstock.cli.script import run
from penstock.errors import ConfigError
from penstock.loader import DataLoader
from penstock.profiling.profile import Profile, check_loader, measured

WARM_BATCHES = 5
"""Batches after which a loop is steady: what a trainer tries before the start, such as two batches of validation, is not the training."""


class LoopProfiler:
    """Follows a program's loaders. Acts in the process that made it alone, not in forked children."""

    def __init__(self, descriptor: int, *, seconds: float, model: str) -> None:
        self._descriptor, self._seconds, self._model = descriptor, seconds, model
        self._owner = os.getpid()
        self._taken: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._stages: Generator[Any, None, Profile] | None = None
        self._loader: Any = None
        """The one that is measured."""
        self._over = False

    def install(self, kind: type) -> None:
        original = kind.__iter__  # type: ignore[attr-defined]

        def followed(loader: DataLoader[Any]) -> Any:
            if os.getpid() != self._owner or self._measures_another(loader):
                return original(loader)
            return FollowedBatches(original(loader) if self._stages is None else None, loader, self)

        kind.__iter__ = followed  # type: ignore[attr-defined]

    def _measures_another(self, loader: DataLoader[Any]) -> bool:
        # Loaders like the one that is measured are ours; others, such as one for validation, go on as they are.
        return self._stages is not None and loader is not self._loader

    def tell(self, **facts: Any) -> None:
        if os.getpid() == self._owner:
            os.write(self._descriptor, json.dumps(facts).encode() + b"\n")

    def next_of(self, batches: Any, loader: DataLoader[Any]) -> Any:
        if self._over:
            raise Enough
        if self._stages is not None and loader is self._loader:
            return self._measured()
        taken = self._taken.get(loader, 0)
        if taken >= WARM_BATCHES and self._stages is None:
            return self._begin(batches, loader)
        batch = next(batches)
        self._taken[loader] = taken + 1
        self.tell(batches=sum(self._taken.values()))
        return batch

    def _begin(self, batches: Any, loader: DataLoader[Any]) -> Any:
        try:
            check_loader(loader)
        except ConfigError as exc:
            self._end(error=str(exc))
        if hasattr(batches, "close"):
            batches.close()  # its workers would prepare on, beside those that are measured
        self._loader = loader
        self._stages = measured(
            loader, seconds=self._seconds, model=self._model, tell=lambda stage: self.tell(stage=stage)
        )
        return self._measured()

    def _measured(self) -> Any:
        assert self._stages is not None
        try:
            return next(self._stages)
        except StopIteration as end:
            self._end(profile=str(end.value))
        except ConfigError as exc:
            self._end(error=str(exc))

    def _end(self, **facts: Any) -> None:
        self._over = True
        self.tell(**facts)
        raise Enough


class FollowedBatches:
    """An iterator over a loader's batches, then over those that are measured; everything else is delegated."""

    def __init__(
        self, batches: Iterator[Any] | None, loader: DataLoader[Any], profiler: LoopProfiler
    ) -> None:
        self._batches, self._loader, self._profiler = batches, loader, profiler

    def __iter__(self) -> FollowedBatches:
        return self

    def __next__(self) -> Any:
        return self._profiler.next_of(self._batches, self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def main(argv: list[str]) -> int:
    job, *words = argv
    options = json.loads(job)
    os.set_inheritable(options["descriptor"], False)
    module = words[0] == "-m"
    script, *args = words[1:] if module else words
    profiler = LoopProfiler(options["descriptor"], seconds=options["seconds"], model=options["model"])
    return run(Program(script=script, args=tuple(args), module=module), profiler)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
