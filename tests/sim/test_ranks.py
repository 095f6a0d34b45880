"""Ranks of one machine: cores go where they are needed, come home, and no fault of their manager costs a batch."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from penstock.policy.deciding import PAUSE_S
from penstock.sim.rank_load import RankFault, RankLoad
from penstock.sim.ranks import Machine, Played, mean_step_s, play
from penstock.sim.shared_pool import least_step_s, shared_pool

UNEQUAL = RankLoad(ranks=2, workers=2, batch_size=32, steps=80, dear=(3.0,))
WARM = 20


def over_pool(load: RankLoad, first: int = WARM) -> float:
    """Step time divided by a shared pool's."""
    return play(load).step_s(first) / mean_step_s(shared_pool(load), first)


def assert_every_batch_once(played: Played) -> None:
    assert played.got == (tuple(range(played.load.steps)),) * played.load.ranks


@pytest.mark.parametrize(
    "load",
    [
        RankLoad(ranks=8, workers=8, steps=80),
        RankLoad(ranks=8, workers=8, steps=80, costs="chains", sample_s=0.005),
        RankLoad(ranks=8, workers=8, steps=80, dear=(3.0,), sample_s=0.005),
        RankLoad(ranks=8, workers=8, steps=80, dear=(3.0,), train_s=0.0143),
        RankLoad(ranks=4, workers=3, steps=80, dear=(3.0,)),
        RankLoad(ranks=2, workers=1, steps=80, batch_size=32, dear=(3.0,)),
    ],
    ids=["photos", "chains", "dear8x8", "short", "dear4x3", "dear2x1"],
)
def test_steps_take_no_longer_than_with_one_pool_for_all_ranks(load: RankLoad) -> None:
    played = play(load)
    assert played.step_s(WARM) <= 1.03 * mean_step_s(shared_pool(load), WARM)
    assert played.moves_per_s(WARM) <= load.cores / 2 / PAUSE_S
    assert_every_batch_once(played)


def test_with_two_batches_ahead_most_of_them_waits_for_whoever_is_free_first() -> None:
    """If all of it waits in the workers' queues, a step of 12 ms takes 10 % longer."""
    load = RankLoad(ranks=8, workers=8, steps=100, window=2)
    assert over_pool(load) < 1.05
    assert over_pool(replace(load, rule="never")) < 1.05


@pytest.mark.parametrize("sample_s", [0.0015, 0.00215])
def test_with_one_batch_ahead_lending_costs_equal_ranks_no_time(sample_s: float) -> None:
    """If cores are lent at the end of each batch, steps of 16 to 24 ms take 12 % longer: they come back too late."""
    load = RankLoad(ranks=4, workers=3, batch_size=32, steps=100, window=1, sample_s=sample_s)
    assert play(load).step_s(WARM) <= 1.01 * play(replace(load, rule="never")).step_s(WARM)


def test_with_one_batch_ahead_and_long_steps_cores_that_idle_at_its_end_are_lent() -> None:
    load = RankLoad(ranks=6, workers=5, steps=60, window=1, costs="chains", sample_s=0.0066)
    assert play(load).step_s(WARM) <= 0.95 * play(replace(load, rule="never")).step_s(WARM)


def test_without_lending_the_dear_rank_sets_the_pace() -> None:
    assert over_pool(replace(UNEQUAL, rule="never")) > 1.4
    assert over_pool(UNEQUAL) < 1.03


def test_a_shared_pool_is_not_faster_than_all_work_on_all_cores() -> None:
    load = replace(UNEQUAL, steps=200)
    assert shared_pool(load)[-1] >= 0.999 * least_step_s(load) * load.steps


def test_ranks_that_wait_for_training_lend_nothing_and_borrow_nothing() -> None:
    played = play(RankLoad(ranks=4, workers=2, steps=40, train_s=0.1))
    assert played.moves_per_s(5) == 0
    assert played.step_s(5) == pytest.approx(0.1, rel=0.001)


def test_equal_ranks_with_equal_samples_keep_their_cores() -> None:
    load = RankLoad(ranks=4, workers=2, steps=80, costs="equal")
    lent, alone = play(load), play(replace(load, rule="never"))
    assert lent.step_s(WARM) <= 1.005 * alone.step_s(WARM)
    assert lent.lent_s <= 0.02 * load.cores * lent.ends_s[-1]


@pytest.mark.parametrize("rule", ["evened", "paper"])
def test_all_cores_are_home_when_nobody_waits_any_more(rule: str) -> None:
    played = play(replace(UNEQUAL, rule=rule))
    assert played.lent_s > 0
    assert set(played.allowed) <= {UNEQUAL.workers, 1 << 30}


def test_a_job_that_waits_for_training_lends_to_another_job() -> None:
    """Ranks 0 and 2 are one job, with samples dear enough to use the cores of the other."""
    load = replace(UNEQUAL, ranks=4, crews=2, dear=(3.0, 0.2, 3.0, 0.2), train_s=0.04)
    alone, lent = play(replace(load, rule="never")), play(load)
    assert lent.step_s(WARM) < 0.6 * alone.step_s(WARM)


def test_lost_messages_cost_time_and_no_batch() -> None:
    for seed in range(3):
        played = play(replace(UNEQUAL, seed=seed, lost=0.3))
        assert_every_batch_once(played)
        assert played.step_s(WARM) < 1.3 * play(replace(UNEQUAL, seed=seed)).step_s(WARM)


def test_a_rank_without_a_core_is_told_again_if_the_message_was_lost() -> None:
    for seed in range(3):
        load = replace(UNEQUAL, seed=seed, rule="paper", ranks=3, workers=1, window=2, steps=40, lost=0.5)
        assert_every_batch_once(play(load))


def test_without_their_manager_ranks_have_their_own_cores() -> None:
    machine = Machine(replace(UNEQUAL, faults=(RankFault(1.0, "manager", 60.0),)))
    played = machine.run()
    assert_every_batch_once(played)
    assert played.allowed == (UNEQUAL.workers,) * UNEQUAL.ranks


def test_a_manager_that_comes_back_lends_again() -> None:
    load = replace(UNEQUAL, steps=160, faults=(RankFault(0.8, "manager", 0.5),))
    played = play(load)
    assert_every_batch_once(played)
    assert played.step_s(100) <= 1.03 * mean_step_s(shared_pool(load), 100)


def test_a_dead_agent_takes_its_cores_along_and_brings_them_back() -> None:
    fault = RankFault(0.5, "agent", 2.0, rank=1)
    load = replace(UNEQUAL, crews=2, steps=200, dear=(3.0, 0.2), train_s=0.04, faults=(fault,))
    machine = Machine(load)

    def most_allowed(until_s: float) -> int:
        most = 0
        while machine.agenda.now_s < until_s:
            machine.agenda.step()
            most = max(most, machine.agents[0].state.local.helpers)
        return most

    assert most_allowed(until_s=0.49) == load.cores
    most_allowed(until_s=0.6)
    assert most_allowed(until_s=2.4) == load.workers
    assert most_allowed(until_s=4.0) == load.cores
    assert_every_batch_once(machine.run())


def test_ranks_that_follow_too_few_cores_all_get_on() -> None:
    """Without a core for each, one with more work than its share would wait for as long as the others have work."""
    load = RankLoad(ranks=4, workers=2, followed=2, crews=4, steps=30, dear=(3.0,))
    played = play(load)
    assert_every_batch_once(played)
    assert min(played.allowed) >= 1


@pytest.mark.parametrize("part", range(4))
def test_no_schedule_of_faults_costs_a_batch(part: int) -> None:
    for seed in range(part, 24, 4):
        assert_every_batch_once(play(draw(seed)))


def draw(seed: int) -> RankLoad:
    """Draw ranks whose manager and agents end at any time, and whose messages get lost."""
    rng = random.Random(f"ranks {seed}")
    ranks = rng.randint(1, 5)
    faults = [
        RankFault(rng.random() * 1.5, rng.choice(("manager", "agent")), rng.random(), rng.randrange(ranks))
        for _ in range(rng.randint(0, 5))
    ]
    return RankLoad(
        seed=seed,
        ranks=ranks,
        workers=rng.randint(1, 4),
        batch_size=rng.choice((1, 8, 32)),
        steps=30,
        window=rng.choice((1, 2, 4, 16)),
        train_s=rng.choice((0.0, 0.02)),
        costs=rng.choice(("equal", "photos", "augmented", "chains", "tail")),
        sample_s=rng.choice((0.0002, 0.004)),
        dear=(rng.choice((1.0, 5.0)),),
        crews=rng.randint(1, ranks),
        rule=rng.choice(("evened", "evened", "paper")),
        lost=rng.choice((0.0, 0.0, 0.1, 0.5)),
        faults=tuple(sorted(faults)),
        followed=rng.choice((0, 0, 1, 3)),
    )
