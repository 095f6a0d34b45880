"""Partly prepared samples are renewed in turn, and what an epoch must renew is spread evenly over its batches."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.plan.even import EvenOrder, Spread
from penstock.plan.renewal import MOST_SAMPLES, Renewal

SEEDS = st.integers(0, 2**32)


@st.composite
def renewals(draw: st.DrawFn, most: int = 200) -> Renewal:
    length = draw(st.integers(1, most))
    return Renewal(length, draw(st.integers(0, length)), draw(st.integers(1, 8)), draw(SEEDS))


def everything(length: int) -> np.ndarray:
    return np.arange(length, dtype=np.int64)


# ---- who is renewed


@given(renewals(), st.integers(0, 60))
def test_every_kept_sample_is_used_as_often_as_was_said(renewal: Renewal, epoch: int) -> None:
    """By a walk through the epochs, with nothing but the stretches."""
    samples = everything(renewal.length)
    place_of = renewal.places.inverse(samples)
    since = np.zeros(renewal.length, dtype=np.int64)
    uses: list[Counter[int]] = [Counter() for _ in range(renewal.length)]
    for now in range(epoch + 1):
        first, size = renewal.stretch(now)
        for number in range(size):
            since[place_of == (first + number) % renewal.kept] = now
        since[place_of >= renewal.kept] = now
        assert (renewal.renewed(samples, now) == since).all()
        for sample in samples.tolist():
            uses[sample][int(since[sample])] += 1
    for sample in samples.tolist():
        if place_of[sample] >= renewal.kept:
            assert set(uses[sample].values()) <= {1}
            continue
        # All but the first, which may have been renewed early, and the last, which is still in use.
        complete = sorted(uses[sample])[1:-1]
        assert all(uses[sample][renewed] == renewal.times for renewed in complete)
        assert max(uses[sample].values()) <= renewal.times


@given(renewals(most=10_000), st.integers(0, 1000), st.randoms())
def test_one_sample_is_renewed_as_among_many(renewal: Renewal, epoch: int, rng: random.Random) -> None:
    samples = [rng.randrange(renewal.length) for _ in range(20)]
    renewed, kept = renewal.when(np.array(samples), epoch)
    assert [renewal.of(sample, epoch) for sample in samples] == list(
        zip(renewed.tolist(), kept.tolist(), strict=True)
    )


@given(renewals(), st.integers(1, 1000))
def test_all_epochs_but_the_first_renew_as_many(renewal: Renewal, epoch: int) -> None:
    assert renewal.misses(0) == renewal.length
    fresh, share = renewal.length - renewal.kept, renewal.kept / renewal.times
    assert abs(renewal.misses(epoch) - fresh - share) < 1
    turns = range(epoch, epoch + renewal.times)
    assert sum(renewal.stretch(turn).size for turn in turns) == renewal.kept


def test_used_once_means_nothing_is_kept_for_long() -> None:
    renewal = Renewal(10, 10, 1, seed=1)
    for epoch in range(4):
        assert renewal.misses(epoch) == 10
        assert renewal.renewed(everything(10), epoch).tolist() == [epoch] * 10


def test_what_cannot_be_is_refused() -> None:
    for length, kept, times in ((MOST_SAMPLES + 1, 0, 1), (5, 6, 1), (5, -1, 1), (5, 5, 0)):
        with pytest.raises(ConfigError):
            Renewal(length, kept, times, seed=0)
    with pytest.raises(ConfigError, match="from 0 on"):
        Renewal(5, 5, 2, seed=0).stretch(-1)


# ---- where they stand


@given(st.integers(1, 300), st.data())
def test_a_part_is_spread_evenly_and_the_rest_too(length: int, data: st.DataObject) -> None:
    spread = Spread(length, data.draw(st.integers(0, length)), data.draw(st.integers(0, length - 1)))
    numbers = everything(length)
    for part in (spread, spread.rest):
        chosen = part.before(numbers + 1) > part.before(numbers)
        assert part.at(everything(part.count)).tolist() == numbers[chosen].tolist()
    first, end = sorted(data.draw(st.tuples(st.integers(0, length), st.integers(0, length))))
    within = int(spread.before(np.array([end]))[0] - spread.before(np.array([first]))[0])
    assert abs(within - (end - first) * spread.count / length) < 1


@given(renewals(), st.integers(0, 30), st.integers(1, 9))
def test_every_sample_stands_in_the_order_once(renewal: Renewal, epoch: int, world: int) -> None:
    order, positions = EvenOrder(renewal, epoch, world), everything(renewal.length)
    samples = order(positions)
    assert sorted(samples.tolist()) == positions.tolist()
    assert order.inverse(samples).tolist() == positions.tolist()
    missed = renewal.renewed(samples, epoch) == epoch
    assert order.is_miss(positions).tolist() == missed.tolist()


@given(renewals(), st.integers(0, 30), st.integers(1, 9), st.integers(1, 40))
def test_every_batch_of_every_rank_has_its_share(
    renewal: Renewal, epoch: int, world: int, batch: int
) -> None:
    missed = EvenOrder(renewal, epoch, world).is_miss(everything(renewal.length))
    share = renewal.misses(epoch) / renewal.length
    for rank in range(min(world, renewal.length)):
        own = missed[rank::world]
        assert abs(own.sum() - share * len(own)) < 1
        for start in range(0, len(own), batch):
            part = own[start : start + batch]
            assert abs(part.sum() - share * len(part)) < 1


def chi2_bound(freedom: int) -> float:
    """What chance exceeds once in about 100,000 times (Wilson and Hilferty)."""
    return float(freedom * (1 - 2 / (9 * freedom) + 4.26 * np.sqrt(2 / (9 * freedom))) ** 3)


@pytest.mark.parametrize(
    ("length", "kept", "times", "world"), [(12, 12, 3, 1), (12, 8, 3, 2), (13, 13, 5, 3), (11, 0, 2, 1)]
)
def test_every_sample_has_the_same_chance_of_every_place(
    length: int, kept: int, times: int, world: int
) -> None:
    rng, rounds = random.Random(length * 31 + kept), 6000
    counts = np.zeros((length, length))
    for _ in range(rounds):
        renewal = Renewal(length, kept, times, rng.getrandbits(64))
        samples = EvenOrder(renewal, rng.randrange(1, 50), world)(everything(length))
        counts[samples, np.arange(length)] += 1
    expected = rounds / length
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < chi2_bound((length - 1) ** 2)


def test_a_plain_shuffle_has_batches_with_far_more_misses_than_others() -> None:
    """What the order is for; and the test above would see it."""
    renewal, batch = Renewal(3000, 3000, 3, seed=5), 30
    even = EvenOrder(renewal, 7, 1).is_miss(everything(3000)).reshape(-1, batch).sum(1)
    rng = np.random.default_rng(1)
    plain = (renewal.renewed(rng.permutation(3000), 7) == 7).reshape(-1, batch).sum(1)
    assert even.min() == even.max() == 10
    assert plain.max() - plain.min() > 6


@given(renewals(), st.integers(0, 30))
def test_the_same_numbers_give_the_same_order(renewal: Renewal, epoch: int) -> None:
    again = replace(renewal)
    positions = everything(renewal.length)
    assert EvenOrder(renewal, epoch, 2)(positions).tolist() == EvenOrder(again, epoch, 2)(positions).tolist()


def test_large_data_sets_are_read_anywhere() -> None:
    renewal = Renewal(MOST_SAMPLES, MOST_SAMPLES - 7, 3, seed=9)
    order = EvenOrder(renewal, 11, 64)
    positions = np.array([0, 1, 12345, 2**30, MOST_SAMPLES - 1], dtype=np.int64)
    samples = order(positions)
    assert order.inverse(samples).tolist() == positions.tolist()
    assert ((renewal.renewed(samples, 11) == 11) == order.is_miss(positions)).all()
