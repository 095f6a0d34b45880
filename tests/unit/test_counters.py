"""Counters of a loader's life, with times that the test makes up."""

from __future__ import annotations

import pytest

from penstock.measure.counters import Counters, Live, as_stats


def test_time_between_epochs_does_not_count() -> None:
    counters = Counters()
    counters.begin(10.0)
    counters.delivered(10.0, 11.0, 8, 0)
    counters.begin(100.0)
    counters.delivered(102.0, 103.0, 8, 0)
    stats = as_stats(counters, engine="workers", epoch=1)
    assert stats["elapsed_s"] == pytest.approx(4.0)
    assert stats["wait_share"] == pytest.approx(2.0 / 4.0)


def test_an_engine_dropped_in_the_middle_keeps_its_sums() -> None:
    counters = Counters()
    counters.attach(lambda: Live(tasks=5, prepare_ns=(10, 20)))
    counters.attach(lambda: Live(tasks=2, prepare_ns=(1,), worker_pids=(7,)))
    live = counters.live()
    assert (live.tasks, live.prepare_ns, live.worker_pids) == (7, (11, 20), (7,))


def test_a_closed_engine_has_no_processes() -> None:
    counters = Counters()
    counters.attach(lambda: Live(agent_pid=3, worker_pids=(4,), tasks=1, held_bytes=9))
    counters.detach()
    live = counters.live()
    assert (live.agent_pid, live.worker_pids, live.held_bytes, live.tasks) == (0, (), 0, 1)


def test_a_loader_that_delivered_nothing_has_no_waiting_share() -> None:
    assert as_stats(Counters(), engine="inline", epoch=0)["wait_share"] == 0.0
