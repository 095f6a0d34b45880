"""Progress of `penstock run --compare`: a bar for each engine with rich on a terminal, else lines."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from typing import Any, Self


class Display:
    """Shows nothing: for ranks other than 0. Used by one thread, inside `with`."""

    def show(self, engine: str, facts: Mapping[str, float], peak_bytes: int) -> None:
        pass

    def finish(self, engine: str, facts: Mapping[str, float], peak_bytes: int) -> None:
        pass

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_display(steps: int | None) -> Display:
    if sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        return Bars(steps)
    return Lines()


def memory(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def note(facts: Mapping[str, float], peak_bytes: int) -> str:
    return f"{facts['samples_per_s']:,.0f} samples/s, waits {facts['wait_share']:.0%}, {memory(peak_bytes)}"


class Bars(Display):
    """rich's bars on standard error."""

    def __init__(self, steps: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.description:>8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            auto_refresh=False,
        )
        self._steps = steps
        self._tasks: dict[str, Any] = {}

    def show(self, engine: str, facts: Mapping[str, float], peak_bytes: int) -> None:
        if not facts["batches"]:
            return
        if engine not in self._tasks:
            self._tasks[engine] = self._progress.add_task(engine, total=self._steps, note="")
        self._progress.update(
            self._tasks[engine], completed=facts["batches"], note=note(facts, peak_bytes), refresh=True
        )

    def finish(self, engine: str, facts: Mapping[str, float], peak_bytes: int) -> None:
        self.show(engine, facts, peak_bytes)
        if engine in self._tasks:
            self._progress.update(self._tasks[engine], total=facts["batches"], refresh=True)

    def close(self) -> None:
        self._progress.stop()

    def __enter__(self) -> Self:
        self._progress.start()
        return self


class Lines(Display):
    """For a log: one line when an engine is done."""

    def finish(self, engine: str, facts: Mapping[str, float], peak_bytes: int) -> None:
        if facts["batches"]:
            line = f"{engine:>8}: {facts['batches']:.0f} batches, {note(facts, peak_bytes)}"
            print(line, file=sys.stderr, flush=True)
