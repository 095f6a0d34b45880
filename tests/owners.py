"""Groups of nodes that keep samples, and what samples cost, for tests of orders and dealing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from penstock.plan.deal_cost import SampleCosts
from penstock.policy.homes import GroupMember, Ownership


def owners_of(rooms: Sequence[int], gpus: int = 1, *, seed: int = 0) -> Ownership:
    """Nodes with room for so many samples, each of `gpus` ranks."""
    members = tuple(GroupMember(name=node, room_bytes=10 * room) for node, room in enumerate(rooms))
    return Ownership(seed=seed, members=members, sample_bytes=10, gpus=gpus)


def some_owners(most_room: int) -> st.SearchStrategy[Ownership]:
    rooms = st.lists(st.integers(0, most_room), max_size=5)
    return st.builds(owners_of, rooms, st.integers(1, 3), seed=st.integers(0, 2**63))


def costs_like(kind: str, count: int, seed: int = 0) -> SampleCosts:
    """Costs of so many samples: `equal`, `few` different ones, `even` ones, or with a `heavy` tail."""
    rng = np.random.default_rng(seed)
    costs = {
        "equal": lambda: np.full(count, 3.0),
        "few": lambda: rng.integers(0, 3, count).astype(np.float64),
        "even": lambda: rng.uniform(1, 2, count),
        "heavy": lambda: rng.pareto(1.1, count),
    }
    return SampleCosts.of(costs[kind]())


def some_costs(count: int) -> st.SearchStrategy[SampleCosts]:
    kinds = st.sampled_from(["equal", "few", "even", "heavy"])
    return st.builds(costs_like, kinds, st.just(count), st.integers(0, 2**32))
