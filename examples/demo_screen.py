"""The demo's display: live bars on a terminal, plain lines elsewhere (a pipe, a log, CI)."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

__all__ = ["Screen", "escape", "rates_table"]

PLAIN_S = 4.0
"""Seconds between lines of progress where there is no terminal."""

LIVE_S = 0.1
"""Seconds between pictures where there is one."""


class Screen:
    """Says things and shows progress. All output of the demo goes through here."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.live = self.console.is_terminal and not os.environ.get("CI")
        self._began = time.monotonic()

    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def phase(self, number: int, title: str) -> None:
        self.console.print(f"\n[bold cyan]{number}[/] [bold]{title}[/]")

    def say(self, text: str) -> None:
        self.console.print(f"  {text}")

    def check(self, good: bool, text: str) -> None:
        self.console.print(f"  [green]✓[/] {text}" if good else f"  [bold red]✗ {text}[/]")

    def table(self, content: Any) -> None:
        self.console.print(Padding(content, (0, 0, 0, 2), expand=False))

    @contextmanager
    def bars(self, totals: dict[str, int]) -> Iterator[Bars]:
        bars = LiveBars(self.console, totals) if self.live else Bars(self.console, totals)
        with bars.shown():
            yield bars

    def hear(self, logger: str) -> None:
        """What a library logs becomes a line of the display instead of a tear in it."""
        log = logging.getLogger(logger)
        log.addHandler(_Lines(self))
        log.propagate = False


class _Lines(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.say(f"[yellow]{record.name}:[/] {escape(record.getMessage())}")


class Bars:
    """Progress of several things as lines, one now and then."""

    def __init__(self, console: Console, totals: dict[str, int]) -> None:
        self.console = console
        self.totals = totals
        self._done = dict.fromkeys(totals, 0)
        self._last_s = time.monotonic()

    @contextmanager
    def shown(self) -> Iterator[None]:
        yield

    def at(self, name: str, done: int, note: str = "") -> None:
        """`done` of the total is done."""
        self._done[name] = done
        now = time.monotonic()
        if now - self._last_s >= PLAIN_S:
            self._last_s = now
            self.console.print(f"  {name}: {done}/{self.totals[name]}  {note}")

    def step(self, name: str, note: str = "") -> None:
        self.at(name, self._done[name] + 1, note)


class LiveBars(Bars):
    """The same as bars that move."""

    def __init__(self, console: Console, totals: dict[str, int]) -> None:
        super().__init__(console, totals)
        self._progress = Progress(
            TextColumn("  "), SpinnerColumn(), TextColumn("{task.description:<12}"), BarColumn(32),
            MofNCompleteColumn(), TextColumn("[dim]{task.fields[note]}"), console=console,
            # No thread of its own and no proxy of stdout: workers are forked while this shows.
            auto_refresh=False, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._tasks = {name: self._progress.add_task(name, total=n, note="") for name, n in totals.items()}

    @contextmanager
    def shown(self) -> Iterator[None]:
        with self._progress:
            yield
            self._progress.refresh()

    def at(self, name: str, done: int, note: str = "") -> None:
        self._done[name] = done
        self._progress.update(self._tasks[name], completed=done, note=note)
        now = time.monotonic()
        if now - self._last_s >= LIVE_S or done == self.totals[name]:
            self._last_s = now
            self._progress.refresh()


def rates_table(rows: list[tuple[str, str, str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("images/s", justify="right", no_wrap=True)
    table.add_column("spread", justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        table.add_row(*row)
    return table
