"""Costs are learned from what was measured: lines through it, however noisy, on any scale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.costs import Line, solved


@given(a=st.floats(0, 1e-2), b=st.floats(0, 1e-7), c=st.floats(0, 1e-8), seed=st.integers(0, 1000))
def test_what_lies_on_a_line_is_predicted(a: float, b: float, c: float, seed: int) -> None:
    points = np.random.default_rng(seed).integers(1000, 10**7, (20, 2)).astype(float)
    line = Line()
    for x, y in points:
        line.observe((x, y), a + b * x + c * y)
    for x, y in points[:3]:
        exact = a + b * x + c * y
        assert line.predict((x, y)) == pytest.approx(
            exact, rel=0.05, abs=1e-3 * (a + b * 1e7 + c * 1e7) + 1e-12
        )


def test_noise_is_averaged_out_and_outliers_do_not_bend_the_line() -> None:
    rng, line = np.random.default_rng(0), Line()
    for _ in range(400):
        pixels = float(rng.integers(10_000, 1_000_000))
        noise = 1 + 0.1 * rng.standard_normal()
        line.observe((pixels,), (1e-4 + 4e-9 * pixels) * noise * (50 if rng.random() < 0.02 else 1))
    for pixels in (20_000.0, 300_000.0, 900_000.0):
        assert line.predict((pixels,)) == pytest.approx(1e-4 + 4e-9 * pixels, rel=0.25)


def test_a_machine_that_becomes_slower_is_noticed() -> None:
    line = Line()
    for round_ in range(2000):
        line.observe((float(round_ % 7),), 1.0 if round_ < 1000 else 2.0)
    assert line.predict((3.0,)) == pytest.approx(2.0, rel=0.05)


def test_features_without_spread_do_no_harm() -> None:
    line = Line()
    for _ in range(20):
        line.observe((5.0, 5.0), 0.25)
    assert line.predict((5.0, 5.0)) == pytest.approx(0.25, rel=1e-3)
    assert line.predict((50.0, 5.0)) >= 0


def test_elimination_solves() -> None:
    assert solved([[4.0, 1.0], [1.0, 3.0]], [1.0, 2.0]) == pytest.approx([1 / 11, 7 / 11], rel=1e-4)


def test_a_line_that_has_gone_astray_comes_back() -> None:
    line = Line()
    for step in range(30):
        line.observe((float(step),), max(0.0, 1.0 - 0.1 * step) + 1e-6)
    for step in range(400):
        line.observe((float(step % 40),), 0.5 + 0.01 * (step % 40))
    assert line.predict((20.0,)) == pytest.approx(0.7, rel=0.1)
