"""A progress bar with the training loop's share of waiting: `for batch in progress(loader): …`.

The bar is rich's or tqdm's, whichever is installed, else a line of text. It has no thread, since a loader forks its workers while the bar
exists, and it is drawn at most ten times a second.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from penstock.errors import ConfigError, MissingExtra
from penstock.loader import DataLoader

T = TypeVar("T")
REDRAW_S = 0.1


class Bar(Protocol):
    """Shows progress. Used by one thread."""

    def show(self, done: int, note: str) -> None: ...
    def close(self) -> None: ...


class RichBar:
    def __init__(self, description: str, total: int | None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"), auto_refresh=False, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._task = self._progress.add_task(description, total=total, note="")
        self._progress.start()

    def show(self, done: int, note: str) -> None:
        self._progress.update(self._task, completed=done, note=note, refresh=True)

    def close(self) -> None:
        self._progress.stop()


class TqdmBar:
    def __init__(self, description: str, total: int | None) -> None:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        class Unwatched(tqdm):  # type: ignore[misc]
            monitor_interval = 0  # tqdm's own thread, which redraws bars that stand still

        self._bar: Any = Unwatched(total=total, desc=description or None, unit="batch")

    def show(self, done: int, note: str) -> None:
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class TextBar:
    """A line on standard error: redrawn on a terminal, printed once at the end in a log."""

    def __init__(self, description: str, total: int | None) -> None:
        self._head = f"{description} " if description else ""
        self._tail = "" if total is None else f"/{total}"
        self._line = ""

    def show(self, done: int, note: str) -> None:
        line = f"{self._head}{done}{self._tail} {note}"
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{line:<{len(self._line)}}")
            sys.stderr.flush()
        self._line = line

    def close(self) -> None:
        sys.stderr.write("\n" if sys.stderr.isatty() else f"{self._line}\n")


BARS: dict[str, Callable[[str, int | None], Bar]] = {"rich": RichBar, "tqdm": TqdmBar, "text": TextBar}


def make_bar(display: str, description: str, total: int | None) -> Bar:
    if display not in ("auto", *BARS):
        raise ConfigError(f"display must be 'auto', 'rich', 'tqdm' or 'text', got {display!r}")
    for name in BARS if display == "auto" else (display,):
        with contextlib.suppress(ImportError):
            return BARS[name](description, total)
    raise MissingExtra(
        f"this progress display needs {display}: pip install {display}, or leave display='auto'"
    )


def progress(
    loader: DataLoader[T],
    description: str = "",
    *,
    display: str = "auto",
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[T]:
    """Yield the loader's batches under a bar with this epoch's share of waiting."""
    try:
        total: int | None = len(loader)
    except TypeError:
        total = None  # an iterable dataset without a length
    bar = make_bar(display, description, total)
    start = loader.stats()
    done, drawn_s = 0, -REDRAW_S
    try:
        for batch in loader:
            done += 1
            if clock() - drawn_s >= REDRAW_S:
                drawn_s = clock()
                bar.show(done, waiting(start, loader.stats()))
            yield batch
        bar.show(done, waiting(start, loader.stats()))
    finally:
        bar.close()


def waiting(start: dict[str, Any], now: dict[str, Any]) -> str:
    """Return the text beside the bar: rates and the waiting share between two `stats()`."""
    if now["engine"] == "torch":
        return ""  # not measured
    elapsed_s = now["elapsed_s"] - start["elapsed_s"]
    share = (now["wait_s"] - start["wait_s"]) / elapsed_s if elapsed_s > 0 else 0.0
    batches, samples = (
        (now[name] - start[name]) / elapsed_s if elapsed_s > 0 else 0.0 for name in ("batches", "samples")
    )
    return f"{batches:.1f} batches/s, {samples:,.0f} samples/s, waits {share:.0%}"
