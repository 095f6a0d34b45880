"""Theorem 1 of Revamper has the properties that its paper states, and agrees with trainings that are played through."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import transforms as T
from penstock.errors import ConfigError
from penstock.pipeline.chain import Chain
from penstock.plan.even import EvenOrder
from penstock.plan.renewal import Renewal
from penstock.plan.seeds import SeedStream, partial_seed
from penstock.policy.diversity import (
    Diversity,
    Followed,
    diversity,
    expected_unique,
    log_ratio,
    measured,
)
from penstock.reuse.draw_tally import DrawTally
from penstock.reuse.metered import Meter
from penstock.transforms.steps import program_size
from tests.scheduled import scheduled_unique

CLOSE = 1e-9
SIZE = (24, 32)
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


OPS = st.sampled_from(
    [
        T.RandomHorizontalFlip(),
        T.RandomVerticalFlip(),
        T.RandomCrop((22, 30)),
        T.RandAugment(1),
        T.ColorJitter(0.4),
        T.GaussianBlur(3),
        T.RandomChoice([T.RandomGrayscale(0.5), T.RandomVerticalFlip()]),
        T.Resize(24),
        T.CenterCrop((23, 31)),
    ]
)
"""All outcomes of each are equally likely, as Theorem 1 has it."""


def metered(
    chain: Chain, split: int, renewal: Renewal, epochs: range, seen: Callable[[int, int], bool]
) -> Diversity | None:
    """What a tally says of a training in which the uses that are `seen` (by sample and epoch) are noted, as a dataset notes them."""
    tally = DrawTally(renewal)
    meter = Meter(tally, chain, split)
    for epoch in epochs:
        order, draws = EvenOrder(renewal, epoch, 1), SeedStream(renewal.seed, epoch)
        positions = order.inverse(tally.samples).tolist()
        for sample, renewed, position in zip(
            tally.samples.tolist(), renewal.renewed(tally.samples, epoch).tolist(), positions, strict=True
        ):
            seed = partial_seed(renewal.seed, renewed, sample)
            if seen(sample, epoch):
                meter.partial(sample, renewed, seed, SIZE)
                size = program_size(chain.draw(seed, SIZE, None, 0, split), SIZE)
                meter.use(sample, epoch, renewed, draws.sample(position, sample), size, None)
    return measured(tally.followed())


@settings(max_examples=20)
@given(
    st.lists(OPS, min_size=1, max_size=4),
    st.integers(0, 4),
    st.integers(100, 5000),
    st.floats(0, 1),
    st.integers(1, 6),
    st.integers(1, 16),
    st.integers(0, 2**32),
)
def test_what_is_measured_is_what_is_expected(
    ops: list[Any], split: int, length: int, share: float, times: int, epochs: int, seed: int
) -> None:
    renewal = Renewal(length, round(share * length), times, seed)
    found = metered(Chain.of(ops), min(split, len(ops)), renewal, range(epochs), lambda *_: True)
    assert found is not None
    assert (found.samples, found.uses) == (min(128, length), epochs)
    assert abs(found.measured - found.expected) < 5.5 * found.error + 12 / found.samples
    assert found.expected <= found.standard * (1 + CLOSE)


def test_where_all_are_kept_what_is_expected_is_theorem_1() -> None:
    chain = Chain.of([T.RandAugment(1), T.RandomHorizontalFlip()])
    found = metered(chain, 1, Renewal(1200, 1200, 3, 5), range(1, 31), lambda *_: True)
    assert found is not None
    assert found.expected == pytest.approx(scheduled_unique(28, 2, 3, 30), rel=0.01)
    assert found.expected == pytest.approx(expected_unique(28, 2, 3, 30), rel=0.03)  # its rounds are full
    assert Followed(28, 2, [3] * 10, 0).expected == pytest.approx(expected_unique(28, 2, 3, 30))
    assert found.standard == pytest.approx(expected_unique(28, 28, 1, 30))
    assert found.measured < 0.9 * found.standard


@pytest.mark.parametrize("world", [2, 3])
def test_a_rank_that_sees_a_part_of_the_uses_expects_so_many(world: int) -> None:
    chain = Chain.of([T.RandAugment(1), T.RandomHorizontalFlip()])
    renewal = Renewal(900, 700, 3, 8)

    def mine(sample: int, epoch: int) -> bool:
        return bool(EvenOrder(renewal, epoch, world).inverse(np.array([sample]))[0] % world == 1)

    found = metered(chain, 1, renewal, range(24), mine)
    assert found is not None
    assert found.uses == pytest.approx(24 / world, abs=1)
    assert abs(found.measured - found.expected) < 5 * found.error + 0.02


def test_draws_that_are_not_what_they_should_be_are_noticed() -> None:
    """The final part, drawn as if it were kept too."""
    chain, renewal = Chain.of([T.RandAugment(1), T.RandomCrop((22, 30))]), Renewal(600, 600, 3, 5)
    tally = DrawTally(renewal)
    meter = Meter(tally, chain, 1)
    for epoch in range(12):
        for sample, renewed in zip(
            tally.samples.tolist(), renewal.renewed(tally.samples, epoch).tolist(), strict=True
        ):
            seed = partial_seed(renewal.seed, renewed, sample)
            meter.partial(sample, renewed, seed, SIZE)
            meter.use(sample, epoch, renewed, seed, SIZE, None)
    found = measured(tally.followed())
    assert found is not None
    assert found.measured < found.expected - 20 * found.error


def test_nothing_is_measured_before_the_first_use() -> None:
    assert measured([]) is None
    assert measured(DrawTally(Renewal(0, 0, 3, 1)).followed()) is None
