"""Stations that did not get ready: they leave the work to one that did, and do it all where none did."""

from __future__ import annotations

import time
from queue import SimpleQueue
from typing import Any

import pytest

from penstock.gpu.gate import Gate
from penstock.gpu.pending import PendingBatch, Readiness, StationJob, start

JOBS = 40


class Some:
    """A station without a device."""

    by_cpu = 0
    residents = None
    held_bytes = 0

    def __init__(self, reason: str) -> None:
        self.reason, self.made, self.closed = reason, 0, False

    def prepare(self) -> str:
        return self.reason

    def tasks(self, contents: Any) -> list[Any]:
        return [contents]

    def make(self, task: Any, out: Any, after: Any) -> None:
        time.sleep(0.001)  # or one would have done all before the other looks
        self.made += 1

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("reasons", "shares"), [(("", "no memory"), (True, False)), (("no", "no"), None)])
def test_one_that_is_not_ready_takes_nothing_from_one_that_is(
    reasons: tuple[str, str], shares: tuple[bool, bool] | None
) -> None:
    stations, jobs, ready = (
        [Some(reason) for reason in reasons],
        SimpleQueue[StationJob | None](),
        Readiness(2),
    )
    for number, station in enumerate(stations):
        start(station, number, jobs, ready, Gate())
    ready.wait()
    pending = PendingBatch(samples=JOBS, tasks=JOBS, copied=None)
    nothing: Any = None
    for _ in range(JOBS):
        jobs.put(StationJob(pending, nothing, nothing, None, lambda _: None))
    pending.order(None)
    assert sum(station.made for station in stations) == JOBS
    if shares is not None:
        assert tuple(station.made > 0 for station in stations) == shares
    for _ in stations:
        jobs.put(None)
    until = time.monotonic() + 10.0
    while not all(station.closed for station in stations):
        assert time.monotonic() < until
        time.sleep(0.005)
