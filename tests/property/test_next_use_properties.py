"""Next uses by inverting orders are what a walk through the epochs finds, and the plan of uses is the loader's plan."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan.epoch import EpochPlan
from penstock.plan.next_use import FAR, NEVER, UsePlan, UseWindow
from penstock.plan.permutation import permutation
from penstock.plan.seeds import order_key


@st.composite
def plans(draw: st.DrawFn) -> UsePlan:
    length, seed = draw(st.integers(1, 40)), draw(st.integers(0, 100))
    return UsePlan(
        length=length,
        batch_size=draw(st.integers(1, 5)),
        nodes=draw(st.integers(1, 3)),
        gpus=draw(st.integers(1, 2)),
        order=lambda epoch: permutation(order_key(seed, epoch), length),
        epochs=draw(st.integers(1, 5)),
        look_ahead=draw(st.integers(1, 4)),
    )


@given(plans(), st.data())
def test_the_next_use_is_what_a_walk_finds(plan: UsePlan, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, plan.nodes - 1))
    after = data.draw(st.integers(0, plan.epochs * plan.steps - 1))
    end = after // plan.steps + plan.look_ahead
    walk = np.full(plan.length, FAR if end < plan.epochs else NEVER)
    for step in range(min(end, plan.epochs) * plan.steps - 1, after, -1):
        samples, ranks = plan.global_batch(step)
        walk[samples[ranks // plan.gpus == node]] = step
    assert (plan.next_use(np.arange(plan.length), node, after) == walk).all()


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 3), st.integers(1, 2), st.integers(0, 5))
def test_ranks_use_what_the_loaders_plan_gives_them(
    length: int, batch: int, nodes: int, gpus: int, epoch: int
) -> None:
    world = nodes * gpus
    uses = UsePlan(
        length=length,
        batch_size=batch,
        nodes=nodes,
        gpus=gpus,
        order=lambda epoch: permutation(order_key(3, epoch), length),
        epochs=9,
    )
    for rank in range(world):
        plan = EpochPlan(
            length=length,
            batch_size=batch,
            drop_last=False,
            shuffle=True,
            seed=3,
            epoch=epoch,
            rank=rank,
            world=world,
        )
        assert plan.batches == uses.steps
        for number in range(plan.batches):
            positions = plan.positions(number)
            samples, ranks = uses.global_batch(epoch * uses.steps + number)
            padded = positions >= length  # samples met again to make shares equal
            assert samples[ranks == rank].tolist() == plan.keys(positions[~padded]).tolist()


def test_a_window_forgets_uses_that_are_over() -> None:
    window = UseWindow()
    for step, samples in enumerate(([1, 2], [2, 3], [1])):
        window.add(step, np.array(samples))
    assert window.next_use(np.array([1, 2, 3, 4]), 0).tolist() == [2, 1, 1, FAR]
    assert window.next_use(np.array([1, 2, 3]), 1).tolist() == [2, FAR, FAR]
    assert list(window._uses) == [1]
