"""The state of one dataset in a machine's cache: events in, actions out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.cache.keeper import Keeper
from penstock.cache.keeper_actions import (
    AnnounceHeld,
    AskPeer,
    Evict,
    Give,
    KeeperAction,
    Land,
    LeaveUnread,
    Ranges,
    ReadDisk,
    ReadSource,
    Refuse,
    Spill,
    Unspill,
)
from penstock.plan.next_use import UseWindow
from penstock.policy.caching import POLICIES, NodeCache
from penstock.policy.holdings import Directory

SAMPLES, BYTES = 100, 64
ME, OTHER = 0, 1
NOBODYS, MINE, OTHERS = 1, 20, 40
"""Samples whose home is nobody, this node, and the other; so are those that follow."""


def ranges(sample: int) -> Ranges:
    return (("data", sample * BYTES, (sample + 1) * BYTES),)


def make(
    *, memory: int = 50, room: int = 10, disk_room: int = 0, policy: str = "auto", **options: Any
) -> Keeper:
    """Make a keeper with memory for so many samples, of which `room` may be kept."""
    homes = np.full(SAMPLES, -1, np.int16)
    homes[MINE:OTHERS], homes[OTHERS:] = ME, OTHER
    rules = POLICIES[policy]
    directory = Directory(SAMPLES, 2, homes if rules.homes else None)
    cache = NodeCache(ME, room_bytes=(room + disk_room) * BYTES, rules=rules, directory=directory)
    return Keeper(
        cache,
        UseWindow(),
        memory_room=room * BYTES,
        memory_bytes=memory * BYTES,
        typical_bytes=BYTES,
        disk=disk_room > 0,
        **options,
    )


def ask(keeper: Keeper, batch: str, *samples: int, step: int = 0, rank: int = 0) -> list[KeeperAction]:
    return keeper.ask(batch, step, rank, list(samples), [ranges(sample) for sample in samples])


def came(keeper: Keeper, *samples: int) -> list[KeeperAction]:
    return [action for sample in samples for action in keeper.came(sample, (BYTES,))]


def wanted(keeper: Keeper, peer: str, *samples: int, step: int = 0) -> list[KeeperAction]:
    return keeper.wanted(peer, step, [(sample, ranges(sample)) for sample in samples])


def read(sample: int, step: int = 0, rank: int = 0) -> ReadSource:
    return ReadSource(sample, ranges(sample), step, rank)


def land(batch: str, ordinal: int, sample: int) -> Land:
    return Land(batch, ordinal, sample, (BYTES,))


def give(peer: str, sample: int) -> Give:
    return Give(peer, sample, (BYTES,))


def spill(sample: int) -> Spill:
    return Spill(sample, ranges(sample))


def unspill(sample: int) -> Unspill:
    return Unspill(sample, ranges(sample))


def on_disk(keeper: Keeper, *samples: int) -> Keeper:
    """Bring samples of this home to disk, by a batch that is over."""
    ask(keeper, "to disk", *samples)
    came(keeper, *samples)
    keeper.over("to disk", used=True)
    for sample in samples:
        keeper.spilled(sample, ok=True)
    return keeper


def is_empty(keeper: Keeper) -> bool:
    counts = (keeper.coming, keeper.here_bytes, keeper.in_memory)
    return not any((*counts, keeper._samples, keeper._batches, keeper._by_rank, keeper._parked))


# ---- rule 1: fetched once


def test_a_sample_that_many_wait_for_is_fetched_once() -> None:
    keeper = make()
    assert ask(keeper, "a", NOBODYS) == [read(NOBODYS)]
    assert ask(keeper, "b", NOBODYS, step=1, rank=1) == []
    assert wanted(keeper, "peer", NOBODYS) == []
    assert came(keeper, NOBODYS) == [land("a", 0, NOBODYS), land("b", 0, NOBODYS), give("peer", NOBODYS)]


def test_a_sample_that_is_there_is_not_fetched() -> None:
    keeper = make()
    ask(keeper, "a", NOBODYS)
    came(keeper, NOBODYS)
    assert ask(keeper, "b", NOBODYS, rank=1) == [land("b", 0, NOBODYS)]
    assert wanted(keeper, "peer", NOBODYS) == [give("peer", NOBODYS)]


def test_a_sample_that_is_fetched_again_is_read_for_the_step_that_needs_it() -> None:
    keeper = on_disk(make(room=0, disk_room=10), MINE)
    ask(keeper, "later", MINE, step=77, rank=3)
    assert keeper.did_not_come(MINE)[-1] == read(MINE, step=77, rank=3)


# ---- rule 2: told once


def test_each_sample_of_a_batch_is_told_of_once_even_if_it_stands_there_twice() -> None:
    keeper = make()
    assert ask(keeper, "a", NOBODYS, 2, NOBODYS) == [read(NOBODYS), read(2)]
    assert came(keeper, NOBODYS) == [land("a", 0, NOBODYS), land("a", 2, NOBODYS)]
    assert keeper.did_not_come(2) == [LeaveUnread("a", 1)]
    assert keeper.over("a", used=False) == [Evict(NOBODYS)]


def test_a_batch_that_is_over_is_told_of_nothing_more() -> None:
    keeper = make()
    ask(keeper, "a", NOBODYS)
    keeper.over("a", used=False)
    assert came(keeper, NOBODYS) == [Evict(NOBODYS)]
    assert is_empty(keeper)


def test_a_batch_that_is_not_open_can_be_over() -> None:
    assert make().over("a", used=True) == []


def test_a_batch_that_is_asked_for_twice_is_refused_and_changes_nothing() -> None:
    keeper = make()
    ask(keeper, "a", NOBODYS)
    with pytest.raises(ValueError, match="twice"):
        ask(keeper, "a", 2)
    assert came(keeper, NOBODYS) == [land("a", 0, NOBODYS)]


# ---- rule 3: bytes stay while they are in use


def test_bytes_stay_until_every_batch_that_was_told_of_them_is_over() -> None:
    keeper = make(room=0)
    for rank, batch in enumerate("ab"):
        ask(keeper, batch, NOBODYS, rank=rank)
    came(keeper, NOBODYS)
    assert keeper.over("a", used=True) == []
    assert keeper.over("b", used=True) == [Evict(NOBODYS)]


def test_bytes_stay_until_a_peer_has_been_sent_them() -> None:
    keeper = make()
    wanted(keeper, "peer", NOBODYS)
    assert came(keeper, NOBODYS) == [give("peer", NOBODYS)]
    assert keeper.given(NOBODYS) == [Evict(NOBODYS)]
    assert is_empty(keeper)


def test_bytes_that_were_dropped_in_use_stay_until_they_are_not() -> None:
    keeper = make(room=1)
    ask(keeper, "a", NOBODYS)
    came(keeper, NOBODYS)
    keeper.over("a", used=True)  # a copy is kept: there is room to spare
    ask(keeper, "b", NOBODYS, MINE)
    assert came(keeper, MINE) == [land("b", 1, MINE)]  # it takes the room
    assert keeper.over("b", used=True) == [Evict(NOBODYS)]


def test_a_peer_that_has_left_is_given_nothing() -> None:
    keeper = make()
    wanted(keeper, "peer", NOBODYS)
    keeper.peer_left("peer")
    assert came(keeper, NOBODYS) == [Evict(NOBODYS)]


# ---- rule 4: the source, and then the asker


def test_what_a_peer_does_not_give_is_read_from_the_source() -> None:
    keeper = make()
    assert ask(keeper, "a", OTHERS) == [AskPeer(OTHER, OTHERS, ranges(OTHERS), 0)]
    assert keeper.did_not_come(OTHERS) == [read(OTHERS)]


def test_what_the_disk_does_not_give_is_read_from_the_source_and_removed_there() -> None:
    keeper = on_disk(make(room=0, disk_room=10), MINE)
    assert ask(keeper, "a", MINE) == [ReadDisk(MINE, ranges(MINE))]
    assert keeper.did_not_come(MINE) == [unspill(MINE), read(MINE)]
    assert came(keeper, MINE) == [spill(MINE), land("a", 0, MINE)]  # it is kept again


def test_what_the_source_does_not_give_is_left_to_whoever_asked() -> None:
    keeper = make()
    ask(keeper, "a", NOBODYS)
    wanted(keeper, "peer", NOBODYS)
    assert keeper.did_not_come(NOBODYS) == [LeaveUnread("a", 0), Refuse("peer", NOBODYS)]
    keeper.over("a", used=True)
    assert is_empty(keeper)


def test_what_a_peer_does_not_give_is_not_read_if_nobody_waits_any_more() -> None:
    keeper = make()
    ask(keeper, "a", OTHERS)
    keeper.over("a", used=False)
    assert keeper.did_not_come(OTHERS) == []
    assert is_empty(keeper)


# ---- rule 5: room


def test_samples_of_a_later_batch_wait_until_one_is_over() -> None:
    keeper = make(memory=2, room=0)
    assert ask(keeper, "a", 1, 2) == [read(1), read(2)]
    assert ask(keeper, "b", 3, 4, step=1) == []
    came(keeper, 1, 2)
    assert keeper.over("a", used=True) == [Evict(1), Evict(2), read(3, 1), read(4, 1)]


def test_a_sample_of_a_later_batch_that_finds_no_room_waits() -> None:
    keeper = make(room=0)
    ask(keeper, "a", 1)
    ask(keeper, "b", 2, step=1)
    came(keeper, 1)
    assert keeper.no_room(2) == []
    assert keeper.over("a", used=True) == [Evict(1), read(2, 1)]


def test_a_ranks_oldest_batch_never_waits_for_room() -> None:
    keeper = make(memory=1, room=0)
    assert ask(keeper, "a", 1, 2) == [read(1), read(2)]
    assert ask(keeper, "b", 3, rank=1) == [read(3, 0, 1)]
    came(keeper, 1)
    assert keeper.no_room(2) == [LeaveUnread("a", 1)]
    assert keeper.no_room(3) == [LeaveUnread("b", 0)]


def test_a_parked_sample_is_asked_for_when_its_batch_becomes_the_oldest_of_its_rank() -> None:
    keeper = make(memory=1, room=0)
    ask(keeper, "a", 1)
    ask(keeper, "b", 2, step=1)
    keeper.did_not_come(1)
    assert keeper.over("a", used=True) == [read(2, 1)]  # though nothing has left memory


def test_a_parked_sample_is_asked_for_when_another_ranks_oldest_batch_needs_it() -> None:
    keeper = make(memory=1, room=0)
    ask(keeper, "a", 1)
    assert ask(keeper, "b", 2, step=1) == []
    assert ask(keeper, "c", 2, rank=1) == [read(2, 0, 1)]
    assert came(keeper, 2) == [land("b", 0, 2), land("c", 0, 2)]


def test_a_parked_sample_that_nobody_waits_for_is_forgotten() -> None:
    keeper = make(memory=1, room=0)
    ask(keeper, "a", 1)
    ask(keeper, "b", 2, step=1)
    for batch in "ba":
        keeper.over(batch, used=False)
    came(keeper, 1)
    assert is_empty(keeper)


def test_a_parked_sample_is_asked_for_when_a_peer_has_been_sent_another() -> None:
    keeper = make(memory=2, room=0)
    wanted(keeper, "peer", 1)
    ask(keeper, "a", 2)
    assert ask(keeper, "b", 3, step=1) == []
    came(keeper, 1)
    assert keeper.given(1) == [Evict(1), read(3, 1)]


def test_a_peer_does_not_wait_for_room() -> None:
    keeper = make(memory=1, room=0)
    ask(keeper, "a", 1)
    ask(keeper, "b", 2, step=1)
    assert wanted(keeper, "peer", 2, 3) == [Refuse("peer", 2), read(3)]
    assert keeper.no_room(3) == [Refuse("peer", 3)]


# ---- rule 6: peers


def test_a_peer_is_not_sent_on_to_another_peer() -> None:
    assert wanted(make(), "peer", OTHERS) == [read(OTHERS)]


def test_a_peer_does_not_wait_for_what_another_peer_was_asked_for() -> None:
    """Two that ask each other for the same sample would wait for ever."""
    keeper = make()
    ask(keeper, "a", OTHERS)
    assert wanted(keeper, "peer", OTHERS) == [Refuse("peer", OTHERS)]


def test_what_another_node_announced_is_asked_for_there_until_it_is_dropped() -> None:
    keeper = make(policy="lru")
    for _ in range(2):  # hearing it twice changes nothing
        keeper.announced(OTHER, [1, 2], [])
    keeper.announced(OTHER, [], [2])
    assert ask(keeper, "a", 1, 2) == [AskPeer(OTHER, 1, ranges(1), 0), read(2)]


def test_what_is_kept_and_dropped_is_announced() -> None:
    keeper = make(policy="lru", room=1, announces=True)
    for step, sample in enumerate((1, 2)):
        ask(keeper, "a", sample, step=step)
        came(keeper, sample)
        told = keeper.over("a", used=True)
    assert told == [AnnounceHeld((2,), (1,)), Evict(1)]


# ---- rule 7: what is kept


def test_a_home_keeps_its_samples_also_those_that_a_peer_has_asked_for() -> None:
    keeper = make()
    wanted(keeper, "peer", MINE)
    came(keeper, MINE)
    assert keeper.given(MINE) == []
    assert keeper.in_memory == keeper.here_bytes == keeper.cache.held_bytes == BYTES


def test_a_batch_that_was_not_used_changes_nothing_that_is_kept() -> None:
    keeper = make()
    ask(keeper, "a", NOBODYS)
    came(keeper, NOBODYS)
    assert keeper.over("a", used=False) == [Evict(NOBODYS)]  # used, it would have been kept as a copy


# ---- disk


def test_what_memory_has_no_room_to_keep_goes_to_disk_and_leaves_memory_then() -> None:
    keeper = make(room=1, disk_room=10)
    ask(keeper, "a", MINE, MINE + 1)
    assert came(keeper, MINE, MINE + 1) == [land("a", 0, MINE), spill(MINE + 1), land("a", 1, MINE + 1)]
    assert keeper.over("a", used=True) == []
    assert keeper.spilled(MINE + 1, ok=True) == [Evict(MINE + 1)]
    assert ask(keeper, "b", MINE, MINE + 1) == [land("b", 0, MINE), ReadDisk(MINE + 1, ranges(MINE + 1))]


def test_what_the_disk_does_not_take_is_not_kept() -> None:
    keeper = make(room=0, disk_room=10)
    ask(keeper, "a", MINE)
    came(keeper, MINE)
    keeper.over("a", used=True)
    assert keeper.spilled(MINE, ok=False) == [Evict(MINE)]
    assert is_empty(keeper)
    assert ask(keeper, "b", MINE) == [read(MINE)]


def test_a_sample_that_is_dropped_on_its_way_to_disk_is_removed_there() -> None:
    keeper = make(policy="lru", room=0, disk_room=1)
    ask(keeper, "a", 1)
    came(keeper, 1)
    assert keeper.over("a", used=True) == [spill(1)]
    ask(keeper, "b", 2, step=1)
    came(keeper, 2)
    assert keeper.over("b", used=True) == [spill(2)]
    assert keeper.spilled(1, ok=True) == [unspill(1), Evict(1)]


def test_a_sample_that_is_kept_again_on_its_way_to_disk_is_written_once() -> None:
    keeper = make(policy="lru", room=0, disk_room=1)
    for step, sample in enumerate((1, 2, 1)):
        ask(keeper, "a", sample, step=step)
        came(keeper, *([sample] if step < 2 else []))
        told = keeper.over("a", used=True)
    assert spill(1) not in told
    assert keeper.spilled(1, ok=True) == [Evict(1)]


def test_a_sample_that_is_dropped_while_the_disk_reads_it_is_not_taken_to_be_there() -> None:
    keeper = make(policy="lru", room=0, disk_room=1)
    on_disk(keeper, 1)
    ask(keeper, "a", 1, step=1)
    ask(keeper, "b", 2, step=1, rank=1)
    came(keeper, 2)
    assert unspill(1) in keeper.over("b", used=True)
    came(keeper, 1)
    assert spill(1) in keeper.over("a", used=True)


def test_parked_samples_are_asked_for_when_the_disk_has_taken_others() -> None:
    keeper = make(memory=1, room=0, disk_room=10)
    ask(keeper, "a", MINE)
    ask(keeper, "b", NOBODYS, step=1)
    ask(keeper, "c", NOBODYS + 1, step=2)
    came(keeper, MINE)
    assert keeper.over("a", used=True) == [read(NOBODYS, 1)]
    assert keeper.no_room(NOBODYS) == [LeaveUnread("b", 0)]
    assert keeper.spilled(MINE, ok=True) == [Evict(MINE), read(NOBODYS + 1, 2)]


def test_a_lasting_disk_is_asked_before_the_source() -> None:
    keeper = make(disk_room=10, lasting=True)
    assert ask(keeper, "a", NOBODYS, OTHERS)[0] == ReadDisk(NOBODYS, ranges(NOBODYS))
    assert keeper.did_not_come(NOBODYS) == [read(NOBODYS)]
    assert wanted(keeper, "peer", MINE) == [ReadDisk(MINE, ranges(MINE))]


def test_a_lasting_disk_gets_what_is_kept_in_memory_and_keeps_what_is_dropped() -> None:
    keeper = make(policy="lru", room=1, disk_room=1, lasting=True)
    ask(keeper, "a", 1)
    assert ReadSource(1, ranges(1), 0, 0) in keeper.did_not_come(1)
    came(keeper, 1)
    assert keeper.over("a", used=True) == [spill(1)]
    keeper.spilled(1, ok=True)
    for step in (1, 2):
        ask(keeper, "a", 2 * step, step=step)
        came(keeper, 2 * step)
        told = keeper.over("a", used=True)
    assert not any(isinstance(action, Unspill) for action in told)
