"""The window of steady state, with times that the test makes up."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.measure.counters import Counters, Live, as_stats
from penstock.measure.steady import WINDOW_BATCHES, WINDOW_S, Steady, Work
from penstock.policy.diagnosis import KEEPS_UP, diagnose


class Loop:
    """A training loop over a loader's counters: steps and waits take as long as it is told."""

    def __init__(self, workers: int = 2) -> None:
        self.counters, self.now_s = Counters(workers=workers), 100.0
        self.busy_ns = self.cpu_ns = self.prepared = 0
        self.pids: tuple[int, ...] = ()
        self.counters.attach(self.live)

    def live(self) -> Live:
        return Live(
            prepare_ns=(self.busy_ns,), cpu_ns=(self.cpu_ns,), prepared=self.prepared, worker_pids=self.pids
        )

    def epoch(
        self, batches: int, *, step_s: float, wait_s: float = 0.0, first_s: float = 0.0, ready: int = 0
    ) -> None:
        self.counters.begin(self.now_s)
        for batch in range(batches):
            self.batch(step_s=step_s if batch else 0.0, wait_s=wait_s if batch else first_s, ready=ready)

    def batch(self, *, step_s: float, wait_s: float, ready: int = 0) -> None:
        self.now_s += step_s + wait_s
        self.prepared += 8
        self.busy_ns += 80_000_000
        self.cpu_ns += 20_000_000
        self.counters.delivered(self.now_s - wait_s, self.now_s, 8, ready)

    @property
    def stats(self) -> dict[str, Any]:
        return as_stats(self.counters, engine="workers", epoch=0)

    @property
    def recent(self) -> Any:
        return self.stats["recent"]


def test_start_up_does_not_count() -> None:
    loop = Loop()
    loop.epoch(30, step_s=0.1, first_s=9.0)
    assert loop.stats["wait_share"] == pytest.approx(9.0 / 11.9)
    assert (loop.recent["batches"], loop.recent["wait_share"]) == (29, 0.0)
    assert diagnose(loop.stats, cores=2) == KEEPS_UP


def test_the_first_batches_of_all_epochs_do_not_count_but_are_known() -> None:
    loop = Loop()
    for _ in range(3):
        loop.epoch(11, step_s=0.1, first_s=0.5)
        loop.now_s += 60.0  # validation between epochs
    recent = loop.recent
    assert (recent["batches"], recent["wait_share"]) == (30, 0.0)
    assert recent["elapsed_s"] == pytest.approx(3.0)
    assert recent["first_wait_s"] == pytest.approx(0.5)
    assert recent["first_share"] == pytest.approx(1.0 / 4.5), "of the first epoch it is nobody's fault"


def test_the_window_slides() -> None:
    loop = Loop()
    loop.epoch(600, step_s=0.1, wait_s=0.1)
    assert loop.recent["wait_share"] == pytest.approx(0.5)
    loop.epoch(600, step_s=0.1)
    assert loop.recent["wait_share"] == 0.0
    assert WINDOW_S <= loop.recent["elapsed_s"] <= WINDOW_S + 2
    assert loop.stats["wait_share"] > 0.3


def test_the_window_has_enough_batches_where_they_are_slow() -> None:
    loop = Loop()
    loop.epoch(200, step_s=5.0)
    assert WINDOW_BATCHES <= loop.recent["batches"] <= WINDOW_BATCHES + 2
    assert len(loop.counters.steady.marks) <= WINDOW_BATCHES + 2


def test_a_pause_of_the_loop_does_not_hide_that_it_waits() -> None:
    loop = Loop()
    loop.epoch(50, step_s=0.01, wait_s=0.03)
    loop.batch(step_s=45.0, wait_s=0.0)
    for _ in range(20):
        loop.batch(step_s=0.01, wait_s=0.03)
    assert loop.recent["wait_share"] == pytest.approx(0.75)
    assert loop.recent["batches"] == 69


def test_steps_that_become_slow_for_good_are_no_pauses() -> None:
    loop = Loop()
    loop.epoch(50, step_s=0.01)
    for _ in range(40):
        loop.batch(step_s=2.0, wait_s=0.0)
    assert loop.recent["elapsed_s"] == pytest.approx(2.0 * 39 + 0.49)


def test_the_window_starts_anew_with_another_number_of_workers() -> None:
    loop = Loop()
    loop.epoch(50, step_s=0.01, wait_s=0.03)
    loop.counters.workers = 4
    for _ in range(15):
        loop.batch(step_s=0.01, wait_s=0.0)
    assert (loop.recent["batches"], loop.recent["wait_share"]) == (15, 0.0)
    assert loop.recent["busy_s"] == pytest.approx(15 * 0.08)


def test_the_window_starts_anew_when_the_gpu_lane_comes_on() -> None:
    loop = Loop()
    loop.epoch(50, step_s=0.01, wait_s=0.03)
    loop.counters.lane_mode = "concurrent"
    for _ in range(15):
        loop.batch(step_s=0.01, wait_s=0.0)
    assert (loop.recent["batches"], loop.recent["wait_share"]) == (15, 0.0)
    assert diagnose(loop.stats, cores=2) == KEEPS_UP


def test_workers_that_a_gpu_lane_takes_the_cores_of_are_not_counted() -> None:
    loop = Loop(workers=15)
    loop.epoch(30, step_s=0.1)
    assert loop.recent["workers"] == 15
    loop.pids = tuple(range(12))
    for _ in range(20):
        loop.batch(step_s=0.1, wait_s=0.0)
    loop.pids = ()  # closed: what was known last counts
    assert loop.recent["workers"] == 12


def test_what_batches_cost_does_not_depend_on_how_far_workers_are_ahead() -> None:
    loop = Loop()
    loop.epoch(30, step_s=0.1)
    ahead = loop.recent
    loop.prepared += 8 * 10
    loop.busy_ns += 10 * 80_000_000
    loop.cpu_ns += 10 * 20_000_000
    assert loop.recent == pytest.approx(ahead)
    assert (loop.recent["busy_s"], loop.recent["cpu_s"]) == (
        pytest.approx(29 * 0.08),
        pytest.approx(29 * 0.02),
    )


@pytest.mark.parametrize(
    ("wait_s", "ready", "waits"), [(0.0005, 3, False), (0.0005, 0, True), (0.05, 3, True)]
)
def test_taking_a_batch_that_is_ready_is_no_wait(wait_s: float, ready: int, waits: bool) -> None:
    loop = Loop()
    loop.epoch(30, step_s=0.001, wait_s=wait_s, ready=ready)
    assert (loop.recent["wait_s"] > 0) is waits
    assert loop.recent["wait_s"] + loop.recent["handover_s"] == pytest.approx(29 * wait_s)


def test_idle_time_of_the_device_counts_instead_of_the_loops() -> None:
    loop = Loop()
    loop.counters.begin(loop.now_s)
    for batch in range(40):
        loop.batch(step_s=0.001, wait_s=0.099)
        if batch > 2:  # it tells of a batch some batches later
            loop.counters.steady.idled(0.001, 1 if batch % 2 else 0)
    recent = loop.recent
    assert recent["waits_of"] == "device"
    assert recent["wait_s"] == pytest.approx(39 * 0.0005, rel=0.1)
    assert diagnose(loop.stats, cores=2) == KEEPS_UP


def test_a_loader_that_delivered_nothing_has_numbers_too() -> None:
    recent = Steady().recent(Work(), 0.0)
    assert (recent["batches"], recent["wait_share"], recent["busy_s"], recent["first_share"]) == (
        0,
        0.0,
        0.0,
        0.0,
    )
