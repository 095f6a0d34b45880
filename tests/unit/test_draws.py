"""The random numbers of ops: uniform, fair, and the same for everyone who has the seed."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.transforms.draws import Draws

COUNT = 100_000


def test_the_same_seed_draws_the_same_and_neighbours_draw_differently() -> None:
    assert [Draws(7).bits() for _ in range(3)] == [Draws(7).bits()] * 3
    assert len({Draws(seed).bits() for seed in range(1000)}) == 1000


def test_numbers_are_those_of_splitmix64() -> None:
    draws = Draws(1234567)
    assert [draws.bits() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("count", [2, 7, 14])
def test_every_number_below_a_count_is_equally_likely(count: int) -> None:
    draws = Draws(count)
    counts = np.bincount([draws.below(count) for _ in range(COUNT)], minlength=count)
    assert chi_square(counts, np.full(count, COUNT / count)) < 4 * count + 20


def test_neighbouring_streams_are_not_alike() -> None:
    """Ops of neighbouring samples start from seeds that differ in one bit."""
    first = np.array([Draws(seed).unit() for seed in range(COUNT // 10)])
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.03
    assert abs(first.mean() - 0.5) < 0.01


def test_choices_follow_their_weights() -> None:
    draws = Draws(3)
    counts = np.bincount([draws.choice([1.0, 0.0, 3.0]) for _ in range(COUNT)], minlength=3)
    assert counts[1] == 0
    assert abs(counts[2] / COUNT - 0.75) < 0.01


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.2, 0.2), (2.0, 5.0)])
def test_beta_has_its_mean_and_variance(a: float, b: float) -> None:
    draws = Draws(11)
    found = np.array([draws.beta(a, b) for _ in range(COUNT // 4)])
    assert found.mean() == pytest.approx(a / (a + b), abs=0.01)
    assert found.var() == pytest.approx(a * b / ((a + b) ** 2 * (a + b + 1)), rel=0.05)


def test_normal_numbers_are_normal() -> None:
    draws = Draws(5)
    found = np.array([draws.normal() for _ in range(COUNT // 4)])
    assert (abs(found.mean()), found.std()) == (pytest.approx(0, abs=0.02), pytest.approx(1, abs=0.02))
    assert np.mean(np.abs(found) > 1.959964) == pytest.approx(0.05, abs=0.005)


def test_orders_are_equally_likely() -> None:
    draws = Draws(9)
    seen: dict[tuple[int, ...], int] = {}
    for _ in range(COUNT // 4):
        order = tuple(draws.order(4))
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 24
    assert chi_square(np.array(list(seen.values())), np.full(24, COUNT / 96)) < 60
