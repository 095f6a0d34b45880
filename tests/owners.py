"""Groups of nodes that keep samples, for tests of orders and dealing."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from penstock.policy.homes import GroupMember, Ownership


def owners_of(rooms: Sequence[int], gpus: int = 1, *, seed: int = 0) -> Ownership:
    """Nodes with room for so many samples, each of `gpus` ranks."""
    members = tuple(GroupMember(name=node, room_bytes=10 * room) for node, room in enumerate(rooms))
    return Ownership(seed=seed, members=members, sample_bytes=10, gpus=gpus)


def some_owners(most_room: int) -> st.SearchStrategy[Ownership]:
    rooms = st.lists(st.integers(0, most_room), max_size=5)
    return st.builds(owners_of, rooms, st.integers(1, 3), seed=st.integers(0, 2**63))
