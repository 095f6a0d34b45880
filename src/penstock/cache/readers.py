"""Reads samples from their source into memory that its caller gives, many at a time, in threads.

Rule 1: jobs begin in the order of their steps; among equal steps, ranks take turns. A job's samples each end with one `done`, unless
        `close` came first.
Rule 2: transient failures are tried again, within limits; a job waits for that in the line, and no thread with it. A job of several samples with an
        error that is not transient is read again sample by sample: the others may be sound.
Rule 3: how many reads are in flight follows what they bring (`policy.reads_at_once`), below what the caller allows. A server that asks for fewer
        requests gets half as many, and one more for each round that succeeds.
Rule 4: a try that hangs (a file system that does not answer) is given up (StuckRead), and its thread is replaced. Its memory may be written until `released`.
Rule 5: while `done` runs but for such a try, nothing here refers to slices of a sample's memory, and its memory is not written any more.

Not for a process that forks: obstore runs here.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.cache.open_runs import LEAST_BYTES_PER_S
from penstock.cache.read_jobs import NoRoom, ReadJob, Token
from penstock.cache.read_line import PendingTry, ReadLine, TryState
from penstock.cache.reading import TRY_S, Place, SampleReader
from penstock.policy.reads_at_once import FIRST, FetchWindow, ReadsAtOnce, ThrottleLimit, kept
from penstock.policy.retry import RetryLimits, pause_s
from penstock.sources.retries import Fleeting

log = logging.getLogger(__name__)

MOST = 512
MOST_BYTES = 256 << 20
"""Bytes of all reads in flight, as far as they are known: of all processes together."""
LIMITS = RetryLimits(total_s=20.0, tries=6, first_s=0.25, most_s=5.0)
"""A worker reads what fails here, and is more patient."""
CLOSE_S = 2.0
WINDOW_S, WINDOW_ROUNDS = 0.2, 2
"""A measurement takes so long, and so many reads as are in flight so many times."""
GROWING_S = 0.05
"""While it looks for more: an epoch should not be half over before its reads are enough."""
MOST_WINDOWS = 256
STUCK_S = 60.0
"""A try that takes so long hangs; more time is given for many bytes. Stores and http have their own, shorter deadlines."""
LOOKS = 4
"""Looks for them in that time."""
PAUSE_S = 1.0
"""A look that comes later by more shows that this process was stopped: that time is no read's."""
RUNNING = TryState.RUNNING

Outcome = tuple[int, ...] | Exception
"""The length of each range, or why there are no bytes."""
Done = Callable[[Token, Outcome], None]


class StuckRead(Exception):
    """A try hangs. Its memory may still be written."""


@dataclass(slots=True)
class KindTotals:
    """What was read from one kind of source."""

    reads: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """Of all reads together."""


@dataclass(slots=True)
class OpenWindow:
    """What has been measured since reads began to wait, or since the last window."""

    since_s: float
    at_once: int
    reads: int = 0
    bytes: int = 0
    read_s: float = 0.0

    def over(self, now_s: float, least_s: float) -> FetchWindow | None:
        """Return the window, if it is long enough."""
        took_s = now_s - self.since_s
        if took_s < least_s or self.reads < WINDOW_ROUNDS * self.at_once:
            return None
        return FetchWindow(self.at_once, self.bytes / took_s, self.read_s / self.reads)


class Readers:
    """Threads that read. `place` and `done` are called from them."""

    def __init__(
        self,
        *,
        place: Place,
        done: Done,
        released: Callable[[Token], None] = lambda _: None,
        settings: Mapping[str, str],
        cwd: str,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
        first: int = FIRST,
        limits: RetryLimits = LIMITS,
        try_s: float = TRY_S,
        stuck_s: float = STUCK_S,
    ) -> None:
        """`place` gets a sample's token and size, and returns memory for all of its ranges, or None: no room. `released` is told of samples that had
        memory when their try was given up, once it has ended. `settings`: what the environment of
        whoever asks says about object stores; `cwd`: where its relative names begin; `first`: reads in flight before anything is measured."""
        self._place, self._done, self._released = place, done, released
        self._most_bytes = most_bytes
        self._most, self._limits, self._try_s, self._stuck_s = most, limits, try_s, stuck_s
        self._reader = SampleReader(settings=settings, cwd=cwd, most_idle=most, try_s=try_s)
        self._state = threading.Condition()
        """Guards all below."""
        self._line = ReadLine()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._alarm_s: float | None = None
        """When some idle thread wakes up by itself."""
        self._adapted = ReadsAtOnce(most, first)
        self._throttle = ThrottleLimit(most)
        self._allowed = 0
        """Reads in flight: the less of the two above."""
        self._allow()
        self._window: OpenWindow | None = None
        self._windows: list[FetchWindow] = []
        self._bytes = 0
        self._closed = False
        self._stuck = 0
        """Threads in a try that was given up."""
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None
        self._totals: dict[str, KindTotals] = {}
        self._retries = self._refusals = self._failures = 0

    # ---- for the caller

    def expect(self, name: str, stamp: str) -> None:
        """From now on, a file having another stamp (`Source.stamp`) is an error."""
        self._reader.expect(name, stamp)

    def submit(self, job: ReadJob) -> None:
        self.submit_many([job])

    def submit_many(self, jobs: Iterable[ReadJob]) -> None:
        """ValueError if a sample is not finished yet."""
        with self._state:
            for job in jobs:
                self._line.add(job)
            self._invite()
            lost = [] if self._threads else self._line.clear()
        self._tell((token, RuntimeError("there is no thread to be had")) for token in lost)

    @property
    def stuck(self) -> int:
        """Tries that were given up and have not ended."""
        return self._stuck

    def windows(self) -> list[FetchWindow]:
        """Return what was measured of late: `policy.reads_at_once.fetch_line` makes a model of it."""
        with self._state:
            return kept(self._windows)

    def stats(self) -> dict[str, Any]:
        """`allowed`: reads in flight at present; `refusals`: of servers that ask for fewer requests; `latest_bytes_per_s`: while reads waited. By kind
        of source, `seconds` are those of all reads together."""
        with self._state:
            queued, running, paused = self._line.count
            return {
                "in_flight": running,
                "queued": queued,
                "paused": paused,
                "allowed": self._allowed,
                "retries": self._retries,
                "refusals": self._refusals,
                "failures": self._failures,
                "latest_bytes_per_s": self._windows[-1].bytes_per_s if self._windows else None,
                "kinds": {kind: asdict(total) for kind, total in self._totals.items()},
            }

    def close(self, *, within_s: float = CLOSE_S) -> None:
        """End without a further `done`. A read in flight is waited for so long; then it is left to its own deadline."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        self._over.set()
        until_s = time.monotonic() + within_s
        for thread in [*self._threads, *([self._watcher] if self._watcher else ())]:
            thread.join(max(0.0, until_s - time.monotonic()))
        self._reader.close()

    # ---- threads

    def _allow(self) -> None:
        self._allowed = min(self._adapted.now, int(self._throttle.limit))

    def _invite(self) -> None:
        """Have one more thread look for work, if there is some. It invites the next."""
        queued, running, paused = self._line.count
        if self._closed or not ((queued and running < self._allowed) or (paused and self._alarm_s is None)):
            return
        if self._idle:
            self._state.notify()
        elif len(self._threads) - self._stuck < self._most:
            try:
                if self._watcher is None:
                    self._watcher = started("penstock read watch", self._watch)
                self._threads.append(started("penstock read", self._run))
            except RuntimeError as exc:  # guard: no-more-threads
                log.debug("cache: no more threads to read (%s): those that are there do it", exc)

    def _run(self) -> None:
        one = self._next()
        while one is not None:
            error = self._try(one)
            with self._state:
                if self._closed:
                    return
                if one.given_up:
                    self._stuck -= 1
                    self._threads.remove(threading.current_thread())  # another has its place
                    break
                over = self._settle(one, error)
                one = self._begin(time.monotonic())
                if one is not None:
                    self._invite()
            self._tell(over)
            if one is None:
                one = self._next()
        if one is not None:
            had = list(one.read.memory)  # guard: released-its-own
            one.read.memory.clear()
            for token in had:
                self._released(token)

    def _tell(self, over: Iterable[tuple[Token, Outcome]]) -> None:
        for token, outcome in over:
            try:
                self._done(token, outcome)
            except Exception as exc:
                log.exception("telling of a read failed")
                if isinstance(outcome, tuple):
                    self._tell([(token, exc.with_traceback(None))])

    def _try(self, one: PendingTry) -> Exception | None:
        try:
            self._reader.read(one.read, self._place)
        except Exception as exc:  # noqa: BLE001 - whoever asked is told
            return exc.with_traceback(None)  # frames would keep memory
        return None

    def _next(self) -> PendingTry | None:
        """Wait for the next job; None: the end."""
        with self._state:
            while not self._closed:
                one = self._begin(time.monotonic())
                if one is not None:
                    self._invite()
                    return one
                self._wait()
            return None

    def _begin(self, now_s: float) -> PendingTry | None:
        running = self._line.count[RUNNING]
        if running >= self._allowed:
            return None
        one = self._line.next(now_s)
        if one is None:
            return None
        cost = one.read.known_bytes(self._reader.typical_bytes)
        if running and self._bytes + cost > self._most_bytes:  # guard: bytes-in-flight
            self._line.put_back(one)
            return None
        one.cost_bytes, one.begun_s = cost, now_s
        one.first_s = now_s if one.first_s is None else one.first_s
        self._bytes += cost
        return one

    def _watch(self) -> None:
        """Look now and then for tries that hang."""
        interval_s, looked_s = self._stuck_s / LOOKS, time.monotonic()
        while not self._over.wait(interval_s):
            now_s = time.monotonic()
            late_s, looked_s = now_s - looked_s - interval_s, now_s
            with self._state:
                if late_s > PAUSE_S:
                    for one in self._line.running():
                        one.begun_s += late_s
                over = self._give_up(now_s)
                self._invite()
            self._tell(over)

    def _give_up(self, now_s: float) -> list[tuple[Token, Outcome]]:
        """Give up tries that hang; return what is to be told of their samples."""
        over: list[tuple[Token, Outcome]] = []
        for one in self._line.running():
            late_s = now_s - one.begun_s - self._stuck_s - one.cost_bytes / LEAST_BYTES_PER_S
            if late_s < 0:  # guard: stuck-reads
                continue
            one.given_up = True
            self._stuck += 1
            self._failures += 1
            self._bytes -= one.cost_bytes
            self._line.finish(one)
            why = StuckRead(f"it was read for {now_s - one.begun_s:.0f} s without an answer")
            log.warning("cache: reading %s hangs: its worker tries", one.read.first_name())
            over += [(token, why) for token in list(one.read.ranges)]
            for token in list(one.read.no_room):
                self._line.leave(token)
                over.append((token, NoRoom()))
        return over

    def _wait(self) -> None:
        """Wait for an invitation, or for the end of a pause, for which one thread is enough."""
        due_s = self._line.due_s()
        mine = due_s is not None and (self._alarm_s is None or due_s < self._alarm_s)
        if mine:
            self._alarm_s = due_s
        self._idle += 1
        self._state.wait(max(0.0, due_s - time.monotonic()) if mine and due_s is not None else None)
        self._idle -= 1
        if mine and self._alarm_s == due_s:
            self._alarm_s = None

    def _account(self, one: PendingTry, error: Exception | None) -> None:
        now_s = time.monotonic()
        self._bytes -= one.cost_bytes
        if error is None:
            nbytes, took_s = sum(map(sum, one.read.lengths.values())), now_s - one.begun_s
            kind = one.read.kind()
            total = self._totals.get(kind)
            if total is None:
                total = self._totals[kind] = KindTotals()
            total.reads += 1
            total.bytes += nbytes
            total.seconds += took_s
            if self._throttle.limit < self._most:
                self._throttle.succeeded(one.begun_s)
                self._allow()
            self._measure(nbytes, took_s, now_s)
        elif isinstance(error, Fleeting) and (error.busy or now_s - one.begun_s >= self._try_s):
            self._refusals += 1
            self._throttle.refused(self._line.count[RUNNING], one.begun_s, now_s)  # guard: fewer-at-once
            self._adapted.refused()
            self._allow()
            self._window = None

    def _measure(self, nbytes: int, took_s: float, now_s: float) -> None:
        """Count a read into the window: if others wait, and nothing but the policy's own number keeps them from beginning."""
        allowed, window = self._adapted.now, self._window
        queued, running, _ = self._line.count
        if not queued or running < allowed or self._allowed < allowed:
            self._window = None
            return
        if window is None or window.at_once != allowed:
            self._window = OpenWindow(now_s, allowed)
            return
        window.reads += 1
        window.bytes += nbytes
        window.read_s += took_s
        found = window.over(now_s, GROWING_S if self._adapted.is_growing else WINDOW_S)
        if found is not None:
            self._windows = [*self._windows[1 - MOST_WINDOWS :], found]
            self._adapted.measured(found)
            self._allow()
            self._window = OpenWindow(now_s, self._adapted.now)

    def _settle(self, one: PendingTry, error: Exception | None) -> list[tuple[Token, Outcome]]:
        """Say which samples are over, and how; others wait again."""
        self._account(one, error)
        read = one.read
        if error is None and not read.no_room:
            self._line.finish(one)
            return list(read.lengths.items())
        over: list[tuple[Token, Outcome]] = [(token, NoRoom()) for token in read.no_room]
        for token in read.no_room:
            self._line.leave(token)
        read.no_room.clear()
        return over + self._settle_rest(one, error)

    def _settle_rest(self, one: PendingTry, error: Exception | None) -> list[tuple[Token, Outcome]]:
        read = one.read
        if error is None or not read.ranges:
            self._line.finish(one)
            return list(read.lengths.items())
        pause = self._pause_s(one, error)
        if pause is not None:
            self._retries += 1
            self._line.pause(one, time.monotonic() + pause)
            return []
        if len(read.ranges) > 1 and not isinstance(error, Fleeting):  # guard: samples-apart
            self._line.split(one)
            return []
        self._failures += 1
        self._line.finish(one)
        return [(token, error) for token in read.ranges]

    def _pause_s(self, one: PendingTry, error: Exception) -> float | None:
        """Return the seconds before another try; None: there is none."""
        one.failures += 1
        if not isinstance(error, Fleeting) or one.first_s is None:
            return None
        return pause_s(
            self._limits,
            failures=one.failures,
            spent_s=time.monotonic() - one.first_s,
            draw=random.SystemRandom().random(),
            asked_s=error.asked_s,
        )


def started(name: str, run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
