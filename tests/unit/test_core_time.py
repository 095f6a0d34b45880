"""Core-time that a rank borrows and lends."""

from __future__ import annotations

import pytest

from penstock.agent.core_time import CoreTime
from penstock.measure.counters import Counters, Live, as_stats
from penstock.measure.steady import Steady, Work
from penstock.measure.trace import trace_events
from penstock.wire.arena import FIELDS, Board
from penstock.wire.frames import CORES


def test_core_time_is_counted_with_the_cores_of_that_time_and_told_when_they_change() -> None:
    at_s, told = [100.0], []
    row = memoryview(bytearray(8 * FIELDS)).cast("q")
    cores = CoreTime(row, told.append, lambda: at_s[0])
    for own, allowed, passed_s in ((2, 2, 5.0), (2, 4, 3.0), (2, 4, 1.0), (2, 0, 2.0), (2, 2, 7.0)):
        cores.hold(own, allowed)
        at_s[0] += passed_s
    cores.hold(2, 2)
    assert row[Board.EXTRA_NS] == 4e9  # 8 borrowed, 4 lent
    assert row[Board.OWN] == 2
    assert [CORES.unpack(one)[1:] for one in told] == [(2, 2), (2, 4), (2, 0), (2, 2)]


def test_workers_that_rest_are_not_counted_as_workers() -> None:
    live = Live(worker_pids=(1, 2, 3, 4), own_workers=2)
    assert live.work().workers == 2
    assert live._replace(own_workers=0).work().workers == 4
    assert live._replace(worker_pids=(1,)).work().workers == 1


@pytest.mark.parametrize(("extra_s", "workers"), [(0.0, 2), (15.0, 4), (-10.0, 1), (-20.0, 1)])
def test_recent_workers_are_the_cores_that_were_allowed(extra_s: float, workers: int) -> None:
    steady = Steady()
    for _ in range(11):
        steady.delivered(
            period_s=1.0, wait_s=0.0, samples=8, ready=1, workers=2, mode="off", work=lambda: Work(workers=2)
        )
    recent = steady.recent(Work(80, workers=2, extra_ns=int(extra_s * 1e9)), 10.0)
    assert (recent["workers"], recent["borrowed_cores"]) == (workers, pytest.approx(extra_s / 10))


def test_worker_seconds_are_those_of_allowed_cores() -> None:
    counters = Counters(workers=2)
    counters.attach(lambda: Live(extra_ns=3_000_000_000))
    counters.begin(10.0)
    counters.delivered(10.0, 14.0, 8, 0)
    assert as_stats(counters, engine="workers", epoch=0)["worker_s"] == pytest.approx(2 * 4.0 + 3.0)


def test_what_the_manager_said_last_stays_when_the_engine_has_ended() -> None:
    counters, said = Counters(), {"moves": 3}
    assert counters.node() is None
    counters.attach(Live, None, lambda: said)
    counters.detach(node=lambda: said)
    said = {}
    assert counters.node() == {"moves": 3}
    counters.attach(Live, None, lambda: said)
    assert counters.node() is None, "it does not answer"


def test_the_trace_has_a_track_of_cores() -> None:
    counters = Counters(workers=2, trace=True)
    counters.cores(5_000_000, 2, 3)
    (event,) = [one for one in trace_events(counters, 42) if one["name"] == "cores"]
    assert (event["ph"], event["ts"], event["args"]) == ("C", 5_000.0, {"own": 2, "allowed": 3})
