"""Reads that wait for a reader: for their turn, or until they may be tried again. One thread at a time; times are arguments."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import IntEnum

from penstock.cache.read_jobs import ReadJob, Token
from penstock.cache.reading import SampleRead
from penstock.policy.deadlines import PendingRead, ReadQueue

TURNS_KEPT = 4096
"""After so many reads, the turns of past steps are forgotten."""


class TryState(IntEnum):
    QUEUED = 0
    RUNNING = 1
    PAUSED = 2


@dataclass(slots=True, eq=False)
class PendingTry:
    """A job that is not finished."""

    number: int
    step: int
    rank: int
    read: SampleRead
    state: TryState = TryState.QUEUED
    place: PendingRead | None = None
    """In the queue, once it has been taken from there."""
    failures: int = 0
    cost_bytes: int = 0
    """What it counts as while it is read."""
    begun_s: float = 0.0
    """Its present try."""
    first_s: float | None = None
    """When it began first."""
    given_up: bool = False
    """Its try hangs, and nobody waits for it any more."""


@dataclass(slots=True)
class ReadLine:
    """Jobs that are not finished: earliest step first, ranks take turns."""

    _queue: ReadQueue = field(default_factory=ReadQueue)
    _tries: dict[int, PendingTry] = field(default_factory=dict)
    _of: dict[Token, PendingTry] = field(default_factory=dict)
    _pauses: list[tuple[float, int]] = field(default_factory=list)
    """(when it may be tried again, number)"""
    _number: int = 0
    count: list[int] = field(default_factory=lambda: [0] * len(TryState))
    """Jobs in each state."""

    def add(self, job: ReadJob) -> None:
        """ValueError if one of its samples is not finished."""
        read = SampleRead(job.samples)
        if any(token in self._of for token in read.ranges):
            raise ValueError("a sample that is being read was asked for again")
        self._add(job.step, job.rank, read)

    def _add(self, step: int, rank: int, read: SampleRead) -> None:
        self._number += 1
        one = self._tries[self._number] = PendingTry(self._number, step, rank, read)
        for token in read.ranges:
            self._of[token] = one
        self._queue.add(step, rank, self._number)
        self.count[TryState.QUEUED] += 1

    def _move(self, one: PendingTry, state: TryState) -> None:
        self.count[one.state] -= 1
        self.count[state] += 1
        one.state = state

    def next(self, now_s: float) -> PendingTry | None:
        """Return the job to read next, to be given to `put_back`, `pause`, `split` or `finish`; None if none may begin."""
        while self._pauses and self._pauses[0][0] <= now_s:
            one = self._tries.get(heapq.heappop(self._pauses)[1])
            if one is not None and one.state == TryState.PAUSED:
                self.put_back(one)
        while len(self._queue):
            place = self._queue.take()
            one = self._tries.get(place.sample)
            if one is not None:
                one.place = place
                self._move(one, TryState.RUNNING)
                if one.number % TURNS_KEPT == 0:
                    self._queue.passed(one.step - 1)
                return one
        return None

    def running(self) -> list[PendingTry]:
        return [one for one in self._tries.values() if one.state == TryState.RUNNING]

    def put_back(self, one: PendingTry) -> None:
        """Have it in its old place."""
        assert one.place is not None
        self._move(one, TryState.QUEUED)
        self._queue.put_back(one.place)

    def pause(self, one: PendingTry, until_s: float) -> None:
        """Have it in its old place, but not before this time."""
        self._move(one, TryState.PAUSED)
        heapq.heappush(self._pauses, (until_s, one.number))

    def due_s(self) -> float | None:
        """Return when the next pause ends."""
        return self._pauses[0][0] if self._pauses else None

    def split(self, one: PendingTry) -> None:
        """Have its samples one by one."""
        self.finish(one)
        for token in one.read.ranges:
            self._add(one.step, one.rank, one.read.alone(token))

    def clear(self) -> list[Token]:
        """Forget all jobs; return their samples."""
        lost = list(self._of)
        self._queue, self._tries, self._of, self._pauses = ReadQueue(), {}, {}, []
        self.count = [0] * len(TryState)
        return lost

    def leave(self, token: Token) -> None:
        """A sample is finished, its job is not."""
        self._of.pop(token, None)

    def finish(self, one: PendingTry) -> None:
        del self._tries[one.number]
        self.count[one.state] -= 1
        for token in one.read.ranges:
            self._of.pop(token, None)
