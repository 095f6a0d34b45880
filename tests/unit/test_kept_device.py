"""The index of samples on a device: places are given out, taken, found and given away, and nobody takes one thing for another."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time

import numpy as np
import torch

from penstock.plan.renewal import Renewal
from penstock.reuse.stores.contract import Wanted
from penstock.reuse.stores.device import DevicePlace, DeviceStore


def store_of(room: int = 8 << 10) -> DeviceStore:
    store = DeviceStore(Renewal(8, 8, 3, seed=1), room)
    store.open(torch.empty(room, dtype=torch.uint8))
    return store


def kept(store: DeviceStore, wanted: Wanted, size: tuple[int, int] = (4, 5)) -> DevicePlace | None:
    place = store.reserve(wanted, size)
    if place is not None:
        assert store.begin([place]) == [True]
        store.end([place], [size])
    return place


def test_a_sample_is_found_when_it_lies_there_and_not_before() -> None:
    store, wanted = store_of(), Wanted(3, 2)
    place = store.reserve(wanted, (4, 5))
    assert place is not None
    assert store.find(wanted) is None
    store.begin([place])
    assert store.find(wanted) is None
    store.end([place], [(4, 5)])
    found = store.find(wanted)
    assert found is not None
    assert (found.place, found.size, found.shape) == (place, (4, 5), (4, 5, 3))
    assert store.find(Wanted(3, 3)) is None
    stats = store.stats()
    assert (stats["entries"], stats["bytes"], stats["found"], stats["missed"]) == (1, 60, 1, 3)


def test_others_see_the_same_index_and_have_no_bytes() -> None:
    store = store_of()
    place = kept(store, Wanted(3, 2))
    copy: DeviceStore = pickle.loads(pickle.dumps(store))  # as a spawned worker gets it
    found = copy.find(Wanted(3, 2))
    assert found is not None
    assert found.place == place
    assert copy.arena is None
    store.close()
    assert not copy.is_open
    assert copy.reserve(Wanted(4, 2), (4, 5)) is None
    assert not store.put(Wanted(3, 2), None)  # type: ignore[arg-type]
    assert store.find(Wanted(3, 2)) is store.borrow(Wanted(3, 2)) is store.get(Wanted(3, 2)) is None


def test_places_are_within_the_memory_that_there_is() -> None:
    store = DeviceStore(Renewal(64, 64, 3, seed=1), 64 << 10)
    store.open(torch.empty(20 << 10, dtype=torch.uint8))
    places = [store.reserve(Wanted(sample, 2), (16, 16)) for sample in range(64)]
    there = [place for place in places if place is not None]
    assert len(there) == 2 * ((8 << 10) // 768)
    assert len({place.offset for place in there}) == len(there)
    assert max(place.offset for place in there) + 768 <= 16 << 10
    assert store.stats()["refused"] == 64 - len(there)
    store.now = 5  # all of them are over
    again = store.reserve(Wanted(0, 5), (16, 16))
    assert again is not None
    assert again.generation == 2


def test_what_no_epoch_will_ask_for_is_given_no_place() -> None:
    store = store_of()
    ends = [store.renewal.ends(sample, 0) for sample in range(8)]
    places = [store.reserve(Wanted(sample, 0), (8, 8)) for sample in range(8)]
    assert [place is not None for place in places] == [end > 1 for end in ends]
    assert 0 < ends.count(1) < 8
    assert store.stats()["refused"] == 0


def claimed(store: DeviceStore) -> DevicePlace:
    """The first place of the first chunk, which is given away."""
    store.chunks[0, 0] += 1
    return DevicePlace(1, 3, 0, int(store.chunks[0, 0]))


def columns(*places: DevicePlace) -> np.ndarray:
    return np.array(places, np.int64)


def test_what_was_read_counts_until_something_else_is_written_there() -> None:
    store = store_of()
    old = kept(store, Wanted(3, 2))
    assert old is not None
    assert store.hold(columns(old)).tolist() == [True]
    new = claimed(store)
    assert store.find(Wanted(3, 2)) is None, "nobody is sent there any more"
    assert store.hold(columns(old)).tolist() == [True], "but whoever is on the way is still right"
    assert store.begin([new]) == [True]
    assert store.hold(columns(old)).tolist() == [False]
    store.end([new], None)
    assert store.hold(columns(old)).tolist() == [False]
    assert store.find(new.wanted) is None, "it went wrong"
    store.close()
    assert store.hold(columns(old, new)).tolist() == [False, False]


def test_a_place_that_was_given_away_is_not_written() -> None:
    store = store_of()
    old = store.reserve(Wanted(3, 2), (4, 5))
    assert old is not None
    claimed(store)
    assert store.begin([old]) == [False]


def test_two_generations_of_a_chunk_are_not_written_at_once() -> None:
    store = store_of()
    old = store.reserve(Wanted(3, 2), (4, 5))
    assert old is not None
    assert store.begin([old, old]) == [True, True]
    new = claimed(store)
    assert store.begin([new]) == [False]
    store.end([old], None)
    assert store.begin([new]) == [False], "there is still one of the others"
    store.end([old], [(4, 5)])
    assert store.begin([new]) == [True]
    store.end([new], [(2, 3)])
    found = store.find(new.wanted)
    assert found is not None
    assert (found.size, found.place) == ((2, 3), new)


def test_what_was_written_to_a_chunk_that_is_given_away_has_no_row() -> None:
    store = store_of()
    old = store.reserve(Wanted(3, 2), (4, 5))
    assert old is not None
    assert store.begin([old]) == [True]
    new = claimed(store)
    store.end([old], [(4, 5)])
    assert store.rows[3].tolist() == [0] * 5
    assert store.begin([new]) == [True]


def reserve_for_ever(store: DeviceStore) -> None:
    epoch = 2
    while True:
        for sample in range(8):
            store.reserve(Wanted(sample, epoch), (16, 16))
        epoch += 1


def test_what_killed_processes_have_claimed_is_free_at_its_end() -> None:
    store = DeviceStore(Renewal(8, 8, 3, seed=1), 64 << 10)
    store.open(torch.empty(64 << 10, dtype=torch.uint8))
    for _ in range(3):
        workers = [
            multiprocessing.get_context("fork").Process(target=reserve_for_ever, args=(store,))
            for _ in range(2)
        ]
        for worker in workers:
            worker.start()
        time.sleep(0.2)
        for worker in workers:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()
    store.now = 10**9
    places = [store.reserve(Wanted(sample, 10**9), (16, 16)) for sample in range(8)]
    assert None not in places
    assert len({place.offset for place in places if place is not None}) == 8
