"""Which node keeps which sample: rooms are respected, and a change of membership moves its own share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.policy.homes import NOWHERE, GroupMember, exponential, find_homes

SEEDS = st.integers(0, 2**32)
EQUAL = [1, 1, 0, 2, 0, 3, 2, 3, 0, 3, 0, 2, 3, 0, 1, 3, 2, 1, 0, 0, 2, 1, 3, 1]
WEIGHTED = [1, 1, 3, 2, 2, 3, 2, 3, 2, 3, 0, 2, 3, 1, 1, 3, 2, 2, 3, 2, 2, 1, 3, 3]


def group(*rooms: int) -> list[GroupMember]:
    return [GroupMember(name=name, room_bytes=room) for name, room in enumerate(rooms)]


def equal(count: int, room: int) -> list[GroupMember]:
    return group(*[room] * count)


@given(
    SEEDS,
    st.lists(st.integers(0, 4000), min_size=1, max_size=6),
    st.lists(st.integers(1, 300), min_size=1, max_size=80),
)
def test_no_node_keeps_more_than_it_can_and_only_full_nodes_refuse(
    seed: int, rooms: list[int], sizes: list[int]
) -> None:
    array = np.array(sizes, np.int64)
    homes = find_homes(seed, group(*rooms), array)
    left = [room - int(array[homes == node].sum()) for node, room in enumerate(rooms)]
    assert min(left) >= 0
    if (homes == NOWHERE).any():
        assert max(left) < array.max()


@given(SEEDS, st.integers(1, 8), st.permutations(range(6)))
def test_the_order_in_which_members_are_named_does_not_matter(
    seed: int, scale: int, shuffled: list[int]
) -> None:
    sizes = np.full(300, 10, np.int64)
    members = group(*[100 * scale * (1 + node) for node in range(6)])
    homes = find_homes(seed, members, sizes)
    again = find_homes(seed, [members[node] for node in shuffled], sizes)
    named = np.array([*shuffled, NOWHERE])[again]
    assert homes.tolist() == named.tolist()


@given(SEEDS, st.integers(2, 8))
def test_a_node_that_leaves_moves_only_its_share(seed: int, nodes: int) -> None:
    sizes = np.full(1000, 10, np.int64)
    members = equal(nodes, 20_000)  # room for all at each
    before = find_homes(seed, members, sizes)
    after = find_homes(seed, members[:-1], sizes)
    stayed = before != nodes - 1
    assert (after[stayed] == before[stayed]).all()
    assert (after != NOWHERE).all()


@given(SEEDS, st.lists(st.integers(1, 2000), min_size=2, max_size=6))
def test_a_node_without_room_is_as_one_that_is_not_there(seed: int, rooms: list[int]) -> None:
    sizes = np.full(200, 10, np.int64)
    left = find_homes(seed, group(*rooms[:-1], 0), sizes)
    assert left.tolist() == find_homes(seed, group(*rooms[:-1]), sizes).tolist()


@pytest.mark.parametrize("room", [0.05, 0.1, 0.12])
def test_with_too_little_room_a_leaving_node_changes_at_most_as_much_at_the_others(room: float) -> None:
    count, nodes = 20_000, 8
    sizes = np.full(count, 10, np.int64)
    members = equal(nodes, int(room * count) * 10)
    before, after = find_homes(3, members, sizes), find_homes(3, members[:-1], sizes)
    share = (before == nodes - 1).sum()
    others = (before != nodes - 1) & (before != NOWHERE)
    assert (after[others] != before[others]).sum() <= 1.05 * share
    assert (after != NOWHERE).sum() == (nodes - 1) * int(room * count)  # no room is left unused


def test_shares_follow_rooms() -> None:
    sizes = np.full(60_000, 10, np.int64)
    rooms = [400_000, 800_000, 1_200_000]
    counts = np.bincount(find_homes(1, group(*rooms), sizes), minlength=3)
    assert counts / 60_000 == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=0.01)


def test_what_a_node_cannot_hold_goes_to_the_others() -> None:
    sizes = np.full(30_000, 10, np.int64)
    homes = find_homes(1, equal(3, 101_000), sizes)  # shares are 1/3 by chance only: some exceed their room
    assert (homes != NOWHERE).all()


def test_a_sample_larger_than_a_node_goes_to_one_that_can_hold_it() -> None:
    sizes = np.array([50, 500, 50, 5000], np.int64)
    assert find_homes(9, group(100, 600), sizes).tolist()[1::2] == [1, NOWHERE]


def test_homes_are_the_same_on_every_machine() -> None:
    sizes = np.full(24, 10, np.int64)
    assert find_homes(7, equal(4, 1000), sizes).tolist() == EQUAL
    assert find_homes(7, group(100, 200, 300, 400), sizes).tolist() == WEIGHTED


def test_draws_are_exponential_where_they_decide() -> None:
    uniform = np.array([0.0, 1e-9, 0.001, 0.1, 0.5])
    assert exponential(uniform) == pytest.approx(-np.log1p(-uniform), rel=1e-6, abs=1e-15)
    steps = exponential(np.linspace(0, 1, 1001))
    assert (np.diff(steps) > 0).all()


def test_two_members_of_one_name_are_refused() -> None:
    member = GroupMember(name=1, room_bytes=10)
    with pytest.raises(ConfigError, match="name of its own"):
        find_homes(0, [member, member], np.ones(3, np.int64))
    with pytest.raises(ConfigError, match="room_bytes"):
        GroupMember(name=1, room_bytes=-1)
