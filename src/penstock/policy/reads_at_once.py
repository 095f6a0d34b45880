"""How many reads a node's fetch pool has in flight, by what it measures. Pure.

`ReadsAtOnce` looks for the knee: the fewest reads in flight with nearly the highest throughput.
Rule 1: it doubles while that brings more than 5 %, then tries the middle once, and holds.
Rule 2: while it holds, it sometimes tries a quarter fewer, sometimes more, ever more rarely while nothing comes of it. Fewer are better if they keep 98 %
        of the throughput.
Rule 3: a throughput that has moved by a third for a few windows is another store, or another load: it looks again, from half.
Rule 4: only windows count in which reads were always waiting: otherwise the number is not what limits.

`ThrottleLimit` obeys a server that asks for fewer requests: half as many, and one more for each round of successes.

`fetch_line` makes a line for `thread_model.FetchModel` of the windows that were measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.errors import ConfigError
from penstock.policy.thread_model import PiecewiseLine, fitted

GROWTH, CLEAR_GROWTH, ENOUGH = 1.05, 1.3, 0.98
MOVED, MOVED_WINDOWS = 1.33, 3
WINDOWS = 2
"""Windows that a try takes, behind one in which reads of the last number end."""
FIRST = 8
PROBE_AFTER, PROBE_LATEST = 16, 256
"""Windows between two tries while it holds: first, and at most."""
SMOOTH = 0.1


class FetchWindow(NamedTuple):
    """What a pool did for a while, in which reads were always waiting."""

    at_once: int
    """Reads in flight."""
    bytes_per_s: float
    read_s: float
    """Mean time of a read."""


class Search(Enum):
    """What is being tried."""

    FIRST = 0
    """A number without any to compare with."""
    MORE = 1
    BETWEEN = 2
    """Between what brought more and what did not."""
    HOLD = 3
    FEWER = 4


@dataclass(slots=True)
class ReadsAtOnce:
    """The number of reads in flight of one pool."""

    most: int
    now: int = FIRST
    """Reads in flight from now on."""
    search: Search = Search.FIRST
    best: tuple[int, float] = (0, 0.0)
    """What it holds or returns to: a number, and bytes/s with it."""
    _rates: list[float] = field(default_factory=list)
    """Of the windows with this number; the first of them is left out."""
    _settled: bool = False
    _held: int = 0
    _patience: int = PROBE_AFTER
    _fewer_next: bool = True
    _moved: int = 0
    _has_held: bool = False

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ConfigError(f"there must be one read in flight at least, got {self.most}")
        self.now = min(self.now, self.most)

    @property
    def is_growing(self) -> bool:
        """Whether every try so far brought more than the one before."""
        return not self._has_held

    def measured(self, window: FetchWindow) -> int:
        """Take a window that was measured with `now`; return what `now` is then."""
        if not self._settled:
            self._settled = True
        elif self.search == Search.HOLD:
            self._hold(window.bytes_per_s)
        else:
            self._rates.append(window.bytes_per_s)
            rate = sum(self._rates) / len(self._rates)
            clear = self.search == Search.MORE and rate > CLEAR_GROWTH * self.best[1]
            if clear or len(self._rates) >= WINDOWS:
                self._judge(rate)
        return self.now

    def refused(self) -> int:
        """The server asks for fewer requests: more were not better. Return what `now` is then."""
        if self.search in (Search.MORE, Search.BETWEEN):
            self._settle_down()
        return self.now

    def _judge(self, rate: float) -> None:
        number, best = self.best
        match self.search:
            case Search.FIRST:
                self.best = self.now, rate
                self._try_more()
            case Search.MORE if rate > GROWTH * best:
                self.best = self.now, rate
                self._patience = PROBE_AFTER
                self._try_more()
            case Search.MORE if self.now > number + 1:
                self._try(Search.BETWEEN, (self.now + number) // 2)
            case Search.BETWEEN if rate > GROWTH * best:
                self.best = self.now, rate
                self._patience = PROBE_AFTER
                self._settle_down()
            case Search.FEWER if rate >= ENOUGH * best:
                # The old throughput stays what it is compared with: many small losses would add up.
                self.best = self.now, best
                self._patience = PROBE_AFTER
                self._try_fewer()
            case _:
                self._settle_down()

    def _hold(self, rate: float) -> None:
        number, best = self.best
        if best / MOVED <= rate <= best * MOVED:
            self._moved, self._held = 0, self._held + 1
            self.best = number, best + SMOOTH * (rate - best)
            if self._held >= self._patience:
                self._probe()
            return
        self._moved += 1
        if self._moved >= MOVED_WINDOWS:
            self._patience = PROBE_AFTER
            self._try(Search.FIRST, max(1, number // 2))

    def _probe(self) -> None:
        self._patience = min(2 * self._patience, PROBE_LATEST)
        fewer, self._fewer_next = self._fewer_next, not self._fewer_next
        if fewer:
            self._try_fewer()
        else:
            self._try_more()

    def _try_more(self) -> None:
        more = min(2 * self.best[0], self.most)
        if more > self.best[0]:
            self._try(Search.MORE, more)
        else:
            self._settle_down()

    def _try_fewer(self) -> None:
        if self.best[0] > 1:
            self._try(Search.FEWER, min(self.best[0] - 1, self.best[0] * 3 // 4))
        else:
            self._settle_down()

    def _settle_down(self) -> None:
        self._try(Search.HOLD, self.best[0])
        self._held, self._has_held = 0, True

    def _try(self, search: Search, number: int) -> None:
        self._settled = self._settled and number == self.now
        self.search, self.now, self._moved = search, max(1, number), 0
        self._rates.clear()


@dataclass(slots=True)
class ThrottleLimit:
    """Reads in flight that a server allows, as far as is known."""

    most: int
    limit: float = 0.0
    _since_s: float = 0.0
    """When it was halved: what had begun before says nothing about the new limit."""

    def __post_init__(self) -> None:
        self.limit = float(self.most)

    def refused(self, in_flight: int, begun_s: float, now_s: float) -> None:
        """A read that began then was refused, beside others."""
        if begun_s >= self._since_s:
            self.limit = max(1.0, min(self.limit, in_flight) / 2)
            self._since_s = now_s

    def succeeded(self, begun_s: float) -> None:
        if begun_s >= self._since_s:
            self.limit = min(float(self.most), self.limit + 1 / self.limit)


def fetch_line(windows: Iterable[FetchWindow], most: int) -> PiecewiseLine:
    """Return bytes per second of one of n readers, for n up to `most`. What is fitted is their sum, which has straight parts: up to the knee, and behind it.
    Beyond what was measured the sum stays as it is."""
    measured = [(float(window.at_once), window.bytes_per_s) for window in windows]
    if not measured:
        raise ConfigError("a line needs a window at least")
    total = fitted([*measured, (0.0, 0.0)])
    return PiecewiseLine(tuple((float(n), total.at(n) / n) for n in range(1, most + 1)))


def kept(windows: Sequence[FetchWindow], *, each: int = 4) -> list[FetchWindow]:
    """Return the latest windows of each number of reads in flight, in their order: what a line is fitted to."""
    seen: dict[int, int] = {}
    found = []
    for window in reversed(windows):
        seen[window.at_once] = seen.get(window.at_once, 0) + 1
        if seen[window.at_once] <= each:
            found.append(window)
    return found[::-1]
