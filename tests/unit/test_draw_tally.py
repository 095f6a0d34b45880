"""What is noted of draws: alike for whoever writes it, however often, and readable from every process."""

from __future__ import annotations

import multiprocessing
import pickle

import numpy as np

from penstock.plan.renewal import Renewal
from penstock.reuse.draw_tally import EPOCHS, FOLLOWED, DrawTally

FORK = multiprocessing.get_context("fork")


def noted(tally: DrawTally, epochs: range) -> None:
    """Every kept draw is that of its epoch, every final one is one of two."""
    for epoch in epochs:
        for sample, renewed in zip(
            tally.samples.tolist(), tally.renewal.renewed(tally.samples, epoch).tolist(), strict=True
        ):
            tally.partial(sample, renewed, renewed, 1000)
            tally.use(sample, epoch, renewed, epoch % 2, 2)


def test_samples_are_followed_that_lie_all_over_the_round() -> None:
    renewal = Renewal(10_000, 6_000, 3, seed=2)
    tally = DrawTally(renewal)
    assert len(set(tally.samples.tolist())) == FOLLOWED
    _, kept = renewal.when(tally.samples, 0)
    assert abs(np.count_nonzero(kept) - 0.6 * FOLLOWED) <= 1
    ends = np.bincount([renewal.ends(sample, 0) for sample in tally.samples[kept].tolist()])
    assert max(ends[1:]) - min(ends[1:]) <= 1
    assert DrawTally(renewal).samples.tolist() == tally.samples.tolist()


def test_all_are_followed_where_there_are_few() -> None:
    assert sorted(DrawTally(Renewal(5, 5, 3, seed=2)).samples.tolist()) == list(range(5))
    assert DrawTally(Renewal(0, 0, 3, seed=2)).followed() == []


def test_rounds_and_different_draws_are_counted_exactly() -> None:
    renewal = Renewal(30, 30, 3, seed=4)
    tally = DrawTally(renewal)
    noted(tally, range(1, 10))
    for sample, found in zip(tally.samples.tolist(), tally.followed(), strict=True):
        renewed = [int(renewal.renewed(np.array([sample]), epoch)[0]) for epoch in range(1, 10)]
        assert sorted(found.rounds) == sorted(renewed.count(each) for each in set(renewed))
        assert found.unique == len({(each, epoch % 2) for epoch, each in enumerate(renewed, 1)})
        assert (found.outcomes, found.final_outcomes, found.uses) == (2000, 2, 9)


def test_what_is_prepared_twice_and_by_several_processes_counts_once() -> None:
    once, often = DrawTally(Renewal(40, 40, 3, seed=4)), DrawTally(Renewal(40, 40, 3, seed=4))
    noted(once, range(8))
    others = [FORK.Process(target=noted, args=(often, range(start, 8))) for start in (0, 0, 3)]
    for other in others:
        other.start()
    for other in others:
        other.join()
        assert other.exitcode == 0
    copy: DrawTally = pickle.loads(pickle.dumps(often))  # as a spawned worker gets it
    noted(copy, range(8))
    assert once.followed() == often.followed() == copy.followed()


def test_a_use_of_what_nobody_noted_does_not_count() -> None:
    tally = DrawTally(Renewal(40, 40, 3, seed=4))
    sample = int(tally.samples[0])
    tally.use(sample, 5, 4, drawn=1, outcomes=2)
    assert tally.epochs == []
    tally.partial(sample, 4, drawn=1, outcomes=2)
    tally.use(sample, 5, 4, drawn=1, outcomes=2)
    assert tally.epochs == [5]


def test_epochs_beyond_the_last_are_not_counted() -> None:
    tally = DrawTally(Renewal(4, 4, 3, seed=4))
    noted(tally, range(EPOCHS - 2, EPOCHS + 5))
    assert tally.epochs == [EPOCHS - 2, EPOCHS - 1]


def test_more_outcomes_than_numbers_can_say_are_very_many() -> None:
    tally = DrawTally(Renewal(4, 4, 3, seed=4))
    tally.partial(0, 0, drawn=1, outcomes=10**400)
    tally.use(0, 0, 0, drawn=1, outcomes=10**400)
    (found,) = tally.followed()
    assert found.expected == 1
