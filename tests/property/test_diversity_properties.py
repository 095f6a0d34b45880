"""Theorem 1 of Revamper has the properties that its paper states, and agrees with trainings that are played through."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.plan.renewal import Renewal
from penstock.policy.diversity import (
    DiversityMeter,
    diversity,
    expected_unique,
    log_ratio,
    scheduled_unique,
)

CLOSE = 1e-9
TIMES = st.integers(1, 20)
EPOCHS = st.integers(1, 400)


@st.composite
def sizes(draw: st.DrawFn, most: int = 10**7) -> tuple[int, int]:
    """|A| and |A_F|, a divisor of it."""
    final = draw(st.integers(1, most))
    return final * draw(st.integers(1, most)), final


# ---- the formula


@given(sizes(most=60), st.integers(1, 6), st.integers(1, 8))
def test_it_is_theorem_1_where_that_can_be_computed_exactly(
    size: tuple[int, int], times: int, rounds: int
) -> None:
    every, final = size
    share = Fraction(final, every)
    missed = (1 - share + share * (1 - Fraction(1, final)) ** times) ** rounds
    wanted = float(every * (1 - missed))
    assert expected_unique(every, final, times, times * rounds) == pytest.approx(wanted, rel=1e-12)


@given(sizes(), TIMES, TIMES, EPOCHS)
def test_more_uses_never_give_more_different_samples(
    size: tuple[int, int], one: int, other: int, epochs: int
) -> None:
    less, more = sorted((one, other))
    assert expected_unique(*size, more, epochs) <= expected_unique(*size, less, epochs) * (1 + CLOSE)


@given(st.floats(1, 1e15), st.floats(0, 1), st.floats(0, 1), TIMES, EPOCHS)
def test_a_final_part_of_more_outcomes_never_gives_fewer(
    every: float, one: float, other: float, times: int, epochs: int
) -> None:
    less, more = sorted((max(1.0, every**one), max(1.0, every**other)))
    less, more = min(less, every), min(more, every)
    assert expected_unique(every, less, times, epochs) <= expected_unique(every, more, times, epochs) * (
        1 + CLOSE
    )


@given(sizes(), TIMES, EPOCHS)
def test_it_lies_between_echoing_and_standard_augmentation(
    size: tuple[int, int], times: int, epochs: int
) -> None:
    every, _ = size
    found = diversity(*size, times, epochs)
    assert diversity(every, every, times, epochs) == pytest.approx(1)
    assert diversity(*size, 1, epochs) == pytest.approx(1)
    assert diversity(every, 1, times, epochs) <= found * (1 + CLOSE)
    assert found <= 1 + CLOSE


@given(sizes(), TIMES, EPOCHS)
def test_there_are_as_many_as_uses_at_most_and_as_outcomes(
    size: tuple[int, int], times: int, epochs: int
) -> None:
    found = expected_unique(*size, times, epochs)
    assert 1 - CLOSE <= found <= min(size[0], epochs) * (1 + CLOSE)


@pytest.mark.parametrize("every", [1e12, 1e100, 10**400, math.inf])
def test_of_very_many_outcomes_the_final_part_decides(every: float) -> None:
    assert expected_unique(every, every, 1, 90) == pytest.approx(90)
    assert expected_unique(every, 1, 3, 90) == pytest.approx(30)
    assert expected_unique(every, 98, 3, 90) == pytest.approx(30 * 98 * (1 - (97 / 98) ** 3))


def test_one_outcome_is_one_sample() -> None:
    assert expected_unique(1, 1, 3, 90) == diversity(1, 1, 3) == log_ratio(1, 1) == 1


def test_the_papers_pipeline_hardly_loses_above_its_threshold_and_much_below() -> None:
    """Two layers of RandAugment, 49 crops and a flip."""
    every = 14 * 14 * 49 * 2
    assert log_ratio(every, 98) > 0.4
    assert diversity(every, 98, 3) > 0.985
    assert diversity(every, 2, 3) < 0.6
    assert diversity(every, 1, 3) == pytest.approx(1 / 3, abs=0.01)


@pytest.mark.parametrize(
    ("every", "final", "times", "epochs"),
    [(4, 5, 1, 1), (4, 0, 1, 1), (4, 2, 0, 9), (4, 2, 1, 0), (math.nan, 1, 1, 1)],
)
def test_what_cannot_be_is_refused(every: float, final: float, times: int, epochs: int) -> None:
    with pytest.raises(ConfigError):
        expected_unique(every, final, times, epochs)


# ---- the formula beside trainings


def played(partial: int, final: int, renewal: Renewal, epochs: int, seed: int) -> list[int]:
    """Different samples of each image, in a training with that many draws."""
    rng = np.random.default_rng(seed)
    images = np.arange(renewal.length)
    seen: list[set[tuple[int, int]]] = [set() for _ in images]
    kept = rng.integers(0, partial, (renewal.length, epochs))
    for epoch in range(epochs):
        firsts = kept[images, renewal.renewed(images, epoch)]
        lasts = rng.integers(0, final, renewal.length)
        for image, first, last in zip(images.tolist(), firsts.tolist(), lasts.tolist(), strict=True):
            seen[image].add((first, last))
    return [len(draws) for draws in seen]


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 6), st.integers(1, 24), st.integers(0, 2**32))
def test_a_training_that_is_played_through_agrees(
    partial: int, final: int, times: int, epochs: int, seed: int
) -> None:
    length = 200 * times  # so that each of the first rounds' lengths is as frequent as the others
    found = played(partial, final, Renewal(length, length, times, seed), epochs, seed)
    error = (
        float(np.std(found)) / math.sqrt(length) + 3 / length
    )  # the rest: where no image differed by chance
    wanted = scheduled_unique(partial * final, final, times, epochs)
    assert abs(float(np.mean(found)) - wanted) < 5.5 * error


@given(sizes(), st.integers(1, 8), st.integers(1, 30))
def test_the_schedule_differs_from_the_theorem_by_less_than_one_round(
    size: tuple[int, int], times: int, rounds: int
) -> None:
    """Its first rounds are shorter: there are more of them."""
    ours, theirs = (
        scheduled_unique(*size, times, times * rounds),
        expected_unique(*size, times, times * rounds),
    )
    assert theirs * (1 - CLOSE) <= ours <= expected_unique(*size, times, times * (rounds + 1)) * (1 + CLOSE)


# ---- the meter


Uses = list[tuple[int, int, int]]
USES: st.SearchStrategy[Uses] = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 5), st.integers(0, 5)), max_size=200
)


def counted(uses: Uses) -> dict[int, int]:
    seen: dict[int, set[tuple[int, int]]] = {}
    for sample, partial, final in uses:
        seen.setdefault(sample, set()).add((partial, final))
    return {sample: len(draws) for sample, draws in seen.items()}


def filled(uses: Uses, **limits: int) -> DiversityMeter:
    meter = DiversityMeter(**limits)
    for use in uses:
        meter.add(*use)
    return meter


@given(USES)
def test_a_meter_with_room_counts_exactly(uses: Uses) -> None:
    found = filled(uses).report(36, 6, 2)
    if not uses:
        assert found is None
        return
    wanted = counted(uses)
    assert found is not None
    assert (found.samples, found.uses) == (len(wanted), pytest.approx(len(uses) / len(wanted)))
    assert found.measured == pytest.approx(sum(wanted.values()) / len(wanted))


@given(USES, st.integers(1, 4), st.integers(1, 8), st.integers(2, 6), st.randoms(use_true_random=False))
def test_meters_of_several_processes_add_up_to_one_that_saw_it_all(
    uses: Uses, processes: int, samples: int, draws: int, rng: random.Random
) -> None:
    """Whoever saw what, in whatever order; what is sent is JSON."""
    whole = filled(uses, samples=samples, draws=draws)
    shares: list[Uses] = [[] for _ in range(processes)]
    for use in uses:
        rng.choice(shares).append(use)
    merged = DiversityMeter(samples=samples, draws=draws)
    for share in shares:
        rng.shuffle(share)
        merged.merge(json.loads(json.dumps(filled(share, samples=samples, draws=draws).state())))
    assert whole.report(36, 6, 2) == merged.report(36, 6, 2)


@given(USES, st.integers(1, 8), st.integers(2, 6))
def test_what_a_meter_keeps_is_bounded(uses: Uses, samples: int, draws: int) -> None:
    followed = filled(uses, samples=samples, draws=draws).state()["followed"]
    assert len(followed) == min(samples, len(counted(uses)))
    assert all(len(hashes) <= draws for *_, hashes in followed)


def test_more_draws_than_a_meter_keeps_are_estimated() -> None:
    meter = DiversityMeter(samples=64, draws=128)
    for sample in range(64):
        for use in range(1000):
            meter.add(sample, use // 4, use)
    found = meter.report(10**12, 10**6, 4)
    assert found is not None
    assert found.expected == pytest.approx(1000, rel=1e-3)
    assert abs(found.measured - 1000) < 5 * found.error < 100


def test_a_training_is_measured_as_expected() -> None:
    """As a loader would do it: two processes, each with every other image of every epoch."""
    partial, final, times, epochs, length = 50, 12, 3, 30, 600
    renewal, images = Renewal(length, length, times, seed=4), np.arange(600)
    rng = np.random.default_rng(5)
    kept = rng.integers(0, partial, (length, epochs))
    meters = [DiversityMeter(), DiversityMeter()]
    for epoch in range(epochs):
        firsts = kept[images, renewal.renewed(images, epoch)]
        for image in rng.permutation(length).tolist():
            meters[image % 2].add(image, int(firsts[image]), int(rng.integers(0, final)))
    meters[0].merge(meters[1].state())
    found = meters[0].report(partial * final, final, times)
    assert found is not None
    assert (found.samples, found.uses) == (256, 30)
    assert abs(found.measured - found.expected) < 5 * found.error
    assert found.share == pytest.approx(1, abs=0.05)


def test_a_meter_without_room_is_refused() -> None:
    with pytest.raises(ConfigError):
        DiversityMeter(samples=0)
