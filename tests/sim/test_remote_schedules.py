"""Remote workers that are late, partitioned and lost, at any step: every batch once and in order, and no run hangs.

To see one: python -c "from penstock.sim import draw_remote, simulate; simulate(draw_remote(SEED), audits=True)"

`scripts/bench sim_remote_campaign` plays 100,000 of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from penstock.sim import FakePool, Fault, Scenario, draw_remote, simulate
from penstock.sim.world import SHARES
from tests.sim.remote_schedules import run

SEEDS = 160
REGRESSIONS = (
    286,
    997,
    17379,
    68730,
    79379,
    91249,
    10229,
    24375,
    51915,
    55877,
    33091,
    36207,
    58429,
    91827,
    65794,
)
"""docs/campaigns.md says what each was."""
PARTS = 4
"""Tests that the seeds are dealt out to, for the sake of parallel runs."""


@pytest.mark.parametrize("part", range(PARTS))
def test_no_trouble_of_a_remote_pool_costs_a_batch(part: int) -> None:
    failed = [row for seed in range(part, SEEDS, PARTS) if not (row := run(seed))["ok"]]
    assert failed == []


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_remote_schedule_that_failed_once_does_not_fail_again(seed: int) -> None:
    assert run(seed, audits=True)["ok"]


def test_the_schedules_contain_every_trouble() -> None:
    scenarios = [draw_remote(seed) for seed in range(SEEDS)]
    faults = Counter(fault.what for one in scenarios for fault in one.faults)
    assert min(faults[name] for name in ("late", "partition", "outage", "share")) > 50
    assert all(one.pools[0].workers and one.pools[0].latency_s for one in scenarios)


QUIET = Scenario(
    seed=0, workers=1, pools=(FakePool(4, latency_s=0.02),), batches=60, batch_size=16, window=6, sample_s=0.01, train_s=0.0
)  # fmt: skip


@pytest.mark.parametrize("what", ["partition", "outage"])
@pytest.mark.parametrize("hang_s", [0.0, 1.0])
def test_training_goes_on_when_all_remote_workers_fall_silent(what: str, hang_s: float) -> None:
    faults = tuple(Fault(step, what, 0) for step in (200, 500, 900))
    world = simulate(replace(QUIET, hang_s=hang_s, faults=faults), audits=True)
    assert world.struck[what] == len(faults)
    assert world.errors == 0


@pytest.mark.parametrize("what", ["partition", "outage"])
def test_local_workers_go_on_alone_when_a_pool_that_is_to_do_everything_falls_silent(what: str) -> None:
    shares = tuple(Fault(step, "share", 1) for step in (5, 12, 19, 26))
    assert {SHARES[one.step % len(SHARES)] for one in shares} == {1.0}
    world = simulate(replace(QUIET, faults=(*shares, Fault(400, what, 0))), audits=True)
    alone = simulate(replace(QUIET, pools=())).agenda.now_s
    assert world.struck[what] == 1
    assert world.agenda.now_s < alone + 12.0


def test_with_a_hang_timeout_a_partition_costs_little_more_than_the_timeout() -> None:
    calm = simulate(QUIET).agenda.now_s
    cut = simulate(replace(QUIET, hang_s=0.5, seed=3, faults=(Fault(400, "outage", 0),)))
    alone = simulate(replace(QUIET, pools=())).agenda.now_s
    assert cut.agenda.now_s < max(calm, alone) + 2.0
