"""The simulator of divisions: it loses no sample, beats no bound, and shows what it is there to show."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.policy.paper_split import Side
from penstock.policy.sharing import Sharing
from penstock.sim.agenda import Agenda
from penstock.sim.division import Rule, division_of, play
from penstock.sim.division_jobs import CostSpread, DivisionJob, changed, draw_job, least_s
from penstock.sim.division_machine import Card, DivisionMachine, TimedWork
from tests.conftest import FULL

MODES = [Sharing.IDLE, Sharing.CONCURRENT]
SEEDS = range(200 if FULL else 6)


def plain(*, workers: int = 2, gpu_s: float = 0.5, train_s: float = 0.0, batches: int = 60) -> DivisionJob:
    """Samples that cost a worker 1 s each, and nothing else. Their sizes differ a little: ours ranks them."""
    count = 16 * batches
    sizes = np.random.default_rng(0).uniform(0.99, 1.01, count)
    return DivisionJob(
        seed=0,
        workers=workers,
        workers_later=workers,
        batch=16,
        batches=batches,
        window=4,
        tiny=1,
        train_s=train_s,
        beside=0.5,
        burden=1.0,
        launch_s=0.0,
        read_s=0.0,
        costs=CostSpread.ALIKE,
        pixels=sizes,
        cpu_s=np.ones(count),
        gpu_s=np.full(count, gpu_s),
    )


class Counted:
    """A machine whose finished work is counted, by side."""

    def __init__(self, job: DivisionJob, rule: Rule, mode: Sharing) -> None:
        self.division = division_of(job, rule, mode)
        self.units = dict.fromkeys(Side, 0)
        self.machine = DivisionMachine(job, mode, self)

    def __getattr__(self, name: str):
        return getattr(self.division, name)

    def done(self, work: TimedWork, side: Side, worker: int, workers: int) -> None:
        self.units[side] += work.units
        self.division.done(work, side, worker, workers)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", Rule)
def test_every_sample_is_made_once_and_no_sooner_than_it_can_be(rule: Rule, mode: Sharing) -> None:
    for seed in SEEDS:
        job = draw_job(seed, batches=40)
        counted = Counted(job, rule, mode)
        counted.machine.run()
        samples = job.batches * job.batch
        if rule in (Rule.OURS, Rule.RANDOM):  # a worker is through with each, whoever makes it
            assert counted.units[Side.WORKERS] == samples
        else:
            # Workers make a task, or read it for the GPU.
            assert counted.units[Side.WORKERS] == samples // job.tiny
        assert counted.machine.ends_s == sorted(counted.machine.ends_s)
        assert counted.machine.ends_s[-1] >= least_s(job, mode) * (1 - 1e-5)


@pytest.mark.parametrize("rule", Rule)
def test_a_job_is_a_function_of_its_seed(rule: Rule) -> None:
    one, other = (play(draw_job(3, batches=40), rule, Sharing.CONCURRENT) for _ in range(2))
    assert one == other


def test_the_bound_is_that_of_both_sides_at_work_all_the_time() -> None:
    job = plain()  # two workers, and a GPU as fast as both
    assert least_s(job, Sharing.CONCURRENT) == pytest.approx(16 * 60 / 4, rel=1e-5)
    assert least_s(plain(train_s=100.0), Sharing.CONCURRENT) == pytest.approx(100 * 60, rel=1e-5)


def test_in_idle_mode_training_and_preparing_take_turns() -> None:
    """Of 16 samples, workers make 12 in 6 s; the GPU trains for 4 s and makes 4 in 2 s."""
    assert least_s(plain(train_s=4.0), Sharing.IDLE) == pytest.approx(6 * 60, rel=1e-5)


def test_other_workers_change_the_bound_from_then_on() -> None:
    """A quarter of the samples a second, then with one worker instead of two a third less."""
    job = changed(plain(), 1)
    assert job.changes_s == pytest.approx(120, rel=1e-5)
    assert least_s(job, Sharing.CONCURRENT) == pytest.approx(120 + 480 / 3, rel=1e-5)


@pytest.mark.parametrize("rule", [Rule.AHEAD, Rule.LARGE])
def test_the_papers_division_reaches_the_bound_where_tasks_are_alike(rule: Rule) -> None:
    assert play(plain(), rule, Sharing.CONCURRENT).whole == pytest.approx(1.0, abs=0.02)


def test_one_batch_at_a_time_leaves_workers_idle_at_its_end() -> None:
    job = plain(workers=7)
    assert play(job, Rule.PAPER, Sharing.CONCURRENT).settled > 1.1
    assert play(job, Rule.AHEAD, Sharing.CONCURRENT).settled < 1.05


def test_ours_learns_what_the_gpu_can_take() -> None:
    found = play(plain(batches=120), Rule.OURS, Sharing.CONCURRENT)
    assert found.settled < 1.2 < found.early


def test_ours_leaves_training_alone_that_does_not_wait() -> None:
    job = plain(train_s=12.0, batches=120)  # workers alone take 8 s
    assert play(job, Rule.OURS, Sharing.CONCURRENT).settled == pytest.approx(1.0, abs=0.01)
    assert play(job, Rule.AHEAD, Sharing.CONCURRENT).settled > 1.1


def test_a_gpu_task_is_suspended_while_training_runs_in_idle_mode() -> None:
    agenda, ended = Agenda(), dict[str, float]()
    card = Card(agenda, lane_rate=0.0, train_rate=1.0)
    card.begin("lane", 2.0, lambda: ended.update(lane=agenda.now_s))
    agenda.after(1.0, lambda: card.begin("train", 5.0, lambda: ended.update(train=agenda.now_s)))
    while agenda.step():
        pass
    assert ended == {"train": 6.0, "lane": 7.0}


def test_training_and_preparing_slow_each_other_down() -> None:
    agenda, ended = Agenda(), dict[str, float]()
    card = Card(agenda, lane_rate=0.5, train_rate=0.75)
    card.begin("lane", 2.0, lambda: ended.update(lane=agenda.now_s))
    card.begin("train", 6.0, lambda: ended.update(train=agenda.now_s))
    while agenda.step():
        pass
    assert ended == {"lane": pytest.approx(4.0), "train": pytest.approx(7.0)}


def test_workers_that_leave_end_what_they_have_begun() -> None:
    job = replace(changed(plain(workers=4), 1), read_s=0.01)
    for rule in Rule:
        counted = Counted(job, rule, Sharing.CONCURRENT)
        counted.machine.run()
        assert counted.machine.workers == 1
        assert sum(counted.units.values()) >= job.batches * job.batch


def test_rows_of_the_benchmark_become_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    bench = importlib.import_module("sim_division")
    row = json.loads(json.dumps(bench.row_of(0)))
    assert row["seed"] == 0
    everything = bench.table([row])[2]
    assert everything.startswith("| all | 1 | ")
    best = min(row[mode][Rule.OURS][2] for mode in MODES)
    assert f"{best:.3f}" in everything
