"""The state of one dataset in a machine's cache when memory turns out to be smaller."""

from __future__ import annotations

import pytest

from penstock.cache.keeper_actions import Evict
from tests.unit.test_keeper import BYTES, MINE, ask, came, make


@pytest.mark.parametrize("disk_room", [0, 20])
def test_with_less_memory_than_was_thought_less_is_held(disk_room: int) -> None:
    keeper = make(memory=50, room=10, disk_room=disk_room)
    ask(keeper, "a", *range(MINE, MINE + 10))
    came(keeper, *range(MINE, MINE + 10))
    keeper.over("a", used=True)
    assert len(keeper.held()) == 10
    out = keeper.has_less(6 * BYTES, 4 * BYTES, (4 + disk_room) * BYTES)
    assert keeper.in_memory == 4 * BYTES
    assert keeper.cache.held_bytes <= keeper.cache.room_bytes == (4 + disk_room) * BYTES
    assert {action.sample for action in out if isinstance(action, Evict)} == set(range(MINE + 4, MINE + 10))
    assert keeper.has_less(6 * BYTES, 4 * BYTES, (4 + disk_room) * BYTES) == []
