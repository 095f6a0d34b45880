"""The choice of a mode over random jobs with random noise: it ends, it costs little, it is hardly worse than the best."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.sharing import (
    CLEARLY,
    ROUNDS,
    TURN,
    Measured,
    Memory,
    Sharing,
    after_block,
    first_choice,
)

ROOM = Memory(0, 0, 1)
BLOCKS = 800


@st.composite
def jobs(draw: st.DrawFn) -> dict[Sharing, tuple[float, float]]:
    """Seconds of a batch and of training's own step in each mode; the lane may lengthen steps."""
    step = draw(st.floats(0.02, 0.5))
    found = {}
    for mode in Sharing:
        own = step * (draw(st.floats(1.0, 1.3)) if mode is Sharing.CONCURRENT else 1.0)
        found[mode] = own + step * draw(st.floats(0.0, 2.0)), own
    return found


def run(
    job: dict[Sharing, tuple[float, float]], noise: float, seed: int
) -> tuple[list[Sharing], float, bool]:
    rng, choice, modes, took = random.Random(seed), first_choice("auto"), [], 0.0
    for _ in range(BLOCKS):
        batch, step = job[choice.mode]
        batch *= max(0.5, rng.gauss(1.0, noise))
        modes.append(choice.mode)
        took += batch
        measured = Measured(batch, max(0.0, batch - step))
        choice = after_block(choice, measured, asked="auto", memory=ROOM)
    return modes, took, choice.trying


@given(job=jobs(), seed=st.integers(0, 2**32))
def test_without_noise_a_mode_is_settled_on_at_once_and_is_never_slower_than_none(
    job: dict[Sharing, tuple[float, float]], seed: int
) -> None:
    modes, took, _ = run(job, 0.0, seed)
    assert len(set(modes[: 3 * TURN])) <= 3
    assert len({*modes[3 * TURN : 200]}) == 1
    contest = sum(job[mode][0] for mode in Sharing) * TURN
    assert took <= BLOCKS * job[Sharing.OFF][0] * (1.0 + CLEARLY) + 3 * contest


@given(job=jobs(), noise=st.floats(0.0, 0.08), seed=st.integers(0, 2**32))
def test_with_noise_the_first_contests_end_and_the_whole_is_not_much_slower_than_the_lane_off(
    job: dict[Sharing, tuple[float, float]], noise: float, seed: int
) -> None:
    modes, took, _ = run(job, noise, seed)
    first = modes[: 4 * ROUNDS * TURN + TURN]
    assert any(len({*first[at : at + 2 * TURN]}) == 1 for at in range(len(first) - 2 * TURN))
    slowest = max(job[mode][0] for mode in Sharing)
    assert took <= BLOCKS * job[Sharing.OFF][0] * (1.05 + noise) + 8 * ROUNDS * TURN * slowest


@given(job=jobs(), noise=st.floats(0.0, 0.03), seed=st.integers(0, 2**32))
def test_a_large_gain_beside_training_is_always_taken(
    job: dict[Sharing, tuple[float, float]], noise: float, seed: int
) -> None:
    batch, step = job[Sharing.CONCURRENT]
    gains = {**job, Sharing.CONCURRENT: (min(batch, 0.8 * job[Sharing.OFF][0]), min(step, 0.1 * batch))}
    waits = job[Sharing.OFF][0] - job[Sharing.OFF][1] > 0.1 * job[Sharing.OFF][0]
    modes, _, _ = run(gains, noise, seed)
    if waits and job[Sharing.IDLE][0] >= job[Sharing.OFF][0]:
        assert modes[5 * TURN : 100].count(Sharing.CONCURRENT) >= 80 - 3 * TURN
