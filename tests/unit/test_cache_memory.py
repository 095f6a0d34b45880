"""The memory tier, its service and its client, in one process."""

from __future__ import annotations

import gc
import logging
import mmap
import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.accel import crc32
from penstock.cache.client import CacheClient
from penstock.cache.keys import KEY_BYTES, key_of
from penstock.cache.memory import LEAST_BYTES, STEP_BYTES, MemoryTier
from penstock.cache.messages import (
    BadRequest,
    CacheMsg,
    pack_lookup,
    pack_places,
    split_lookup,
    split_places,
)
from penstock.errors import ConfigError
from penstock.wire.frames import HEAD
from tests.cache_service import content, key, put, refused, serving
from tests.fault.programs import until


@pytest.fixture
def tier() -> Iterator[MemoryTier]:
    made = MemoryTier(1 << 22)
    yield made
    made.close()


def fill(tier: MemoryTier, first: int = 0) -> int:
    """Put numbers until there is no room; return the first that did not fit."""
    while put(tier, first):
        first += 1
    return first


def read(tier: MemoryTier, number: int) -> bytes | None:
    with tier.reading(key(number)) as view:
        return None if view is None else bytes(view)


# ---- keys


def test_keys_differ_in_name_range_and_stamp() -> None:
    keys = {
        key_of(*each)
        for each in [
            ("a", 0, 1, "s"),
            ("a", 0, None, "s"),
            ("a", 0, 11, "s"),
            ("a", 1, 1, "s"),
            ("b", 0, 1, "s"),
            ("a", 0, 1, "t"),
            ("a\udcff", 0, 1, "s"),
            ("a', 0", 1, 1, "s"),
        ]
    }
    assert len(keys) == 8
    assert {len(each) for each in keys} == {KEY_BYTES}


# ---- the tier


def test_bytes_are_found_when_they_are_committed_and_not_before(tier: MemoryTier) -> None:
    view = tier.reserve(key(1), 5)
    assert view is not None
    view[:] = b"bytes"
    assert read(tier, 1) is None
    assert tier.reserve(key(1), 5) is None, "it is being written"
    assert tier.commit(key(1), crc32(b"bytes"))
    with pytest.raises(ValueError, match="released"):
        view[0] = 0
    assert read(tier, 1) == b"bytes"
    assert tier.check_of(key(1)) == crc32(b"bytes")
    assert tier.reserve(key(1), 5) is None, "it is there"


def test_an_empty_entry_is_an_entry(tier: MemoryTier) -> None:
    assert tier.reserve(key(1), 0) is not None
    assert tier.commit(key(1), 0)
    assert read(tier, 1) == b""


def test_bytes_with_another_checksum_are_given_up(tier: MemoryTier) -> None:
    view = tier.reserve(key(1), 5)
    assert view is not None
    view[:] = b"other"
    assert not tier.commit(key(1), crc32(b"bytes"))
    assert key(1) not in tier
    assert tier.stats()["reserved"] == 0
    assert tier.stats()["free_bytes"] == tier.stats()["held_bytes"]


def test_a_full_tier_refuses_and_has_room_again_when_told_to_evict(tier: MemoryTier) -> None:
    count = fill(tier)
    assert count > 100
    assert all(read(tier, number) == content(number) for number in range(count))
    assert tier.stats()["held_bytes"] == tier.max_bytes == 1 << 22
    for number in range(count):
        assert tier.evict(key(number))
    assert not tier.evict(key(0))
    assert tier.stats()["largest_hole"] == tier.max_bytes
    assert fill(tier, count) > count


def test_leased_bytes_stay_when_they_are_evicted(tier: MemoryTier) -> None:
    assert put(tier, 0)
    with tier.reading(key(0)) as view:
        assert view is not None
        assert tier.evict(key(0))
        assert key(0) not in tier
        last = fill(tier, 1)
        assert view == content(0), "its memory was given to others"
    assert fill(tier, last) >= last
    assert tier.stats()["leased"] == 0


def test_an_evicted_key_can_be_cached_again_while_its_old_bytes_are_leased(tier: MemoryTier) -> None:
    assert put(tier, 0)
    (old,) = tier.lookup([key(0)], "reader")
    tier.evict(key(0))
    assert put(tier, 0)
    (new,) = tier.lookup([key(0)], "reader")
    assert old is not None
    assert new is not None
    assert old != new
    tier.release([old.offset], "reader")
    assert tier.stats()["leased"] == 1
    assert read(tier, 0) == content(0)


def test_an_owner_ends_only_its_own_leases(tier: MemoryTier) -> None:
    assert put(tier, 0)
    (place,) = tier.lookup([key(0)], "one")
    assert place is not None
    tier.evict(key(0))
    tier.release([place.offset, place.offset, 12345], "another")
    assert tier.stats()["leased"] == 1
    tier.release([place.offset], "one")
    tier.release([place.offset], "one")
    assert tier.stats()["leased"] == 0
    assert tier.stats()["free_bytes"] == tier.stats()["held_bytes"]


def test_who_leaves_holds_nothing(tier: MemoryTier) -> None:
    assert put(tier, 0)
    tier.lookup([key(0), key(0), key(9)], "one")
    tier.lookup([key(0)], "another")
    assert tier.reserve(key(1), 100, "one") is not None
    assert tier.reserve(key(2), 100, "another") is not None
    tier.evict(key(0))
    tier.leave("one")
    assert (tier.stats()["leased"], tier.stats()["reserved"]) == (1, 1)
    tier.leave("another")
    assert (tier.stats()["leased"], tier.stats()["reserved"]) == (0, 0)
    assert tier.stats()["free_bytes"] == tier.stats()["held_bytes"]


def test_memory_that_a_writer_may_still_write_is_not_given_to_others(tier: MemoryTier) -> None:
    view = tier.reserve(key(0), 100_000, "writer")
    assert view is not None
    late = np.frombuffer(view, np.uint8)
    tier.leave("writer")
    last = fill(tier, 1)
    late[:] = 7
    assert all(read(tier, number) == content(number) for number in range(1, last))
    late[:] = 7
    del late
    assert tier.reserve(key(0), 100_000) is not None


def test_bytes_are_not_committed_while_their_writer_can_write_them(tier: MemoryTier) -> None:
    view = tier.reserve(key(0), 100)
    assert view is not None
    rest = view[50:]
    with pytest.raises(BufferError):
        tier.commit(key(0))
    rest.release()
    assert key(0) not in tier


def test_nobody_else_can_map_it_for_writing(tier: MemoryTier) -> None:
    assert put(tier, 0)
    fd = tier.open_for_reading()
    again = os.open(f"/proc/self/fd/{tier.fd}", os.O_RDWR)
    try:
        for each in (fd, again):
            with pytest.raises(PermissionError):
                mmap.mmap(each, tier.size)
            with pytest.raises(OSError, match=r"not permitted|Bad file descriptor"):
                os.pwrite(each, b"other", 0)
            with pytest.raises(OSError, match=r"not permitted|Invalid argument"):
                os.ftruncate(each, 0)
    finally:
        os.close(fd)
        os.close(again)


def test_less_is_used_where_memory_ends_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(fd: int, start: int, nbytes: int) -> None:
        if start:
            raise OSError(28, "No space left on device")

    tier = MemoryTier(4 * STEP_BYTES)
    monkeypatch.setattr(os, "posix_fallocate", full)
    first = fill(tier)
    assert tier.max_bytes == STEP_BYTES
    assert fill(tier, first) == first
    assert len(caplog.records) == 1
    assert "16,777,216 are used" in caplog.text
    tier.close()


def test_a_tier_without_room_is_an_error() -> None:
    with pytest.raises(ConfigError, match="at least"):
        MemoryTier(LEAST_BYTES - 1)


# ---- messages


def test_messages_are_what_was_packed() -> None:
    keys = [key(1), key(2)]
    assert split_lookup(pack_lookup([64, 1 << 40], keys)) == ((64, 1 << 40), keys)
    assert split_lookup(pack_lookup([], [])) == ((), [])
    assert split_places(pack_places([(0, 5), None, (64, 0)]), 3, 64) == [(0, 5), None, (64, 0)]


@pytest.mark.parametrize(
    "data", [b"", b"\1\0\0\0", b"\0\0\0\0key", pack_lookup([1], [key(1)])[:-1], b"\xff" * 64]
)
def test_a_lookup_of_another_length_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        split_lookup(data)


@pytest.mark.parametrize("place", [(0, 65), (-5, 2), (64, 1), (1 << 62, 1 << 62), (5, -1)])
def test_places_outside_of_the_memory_are_refused(place: tuple[int, int]) -> None:
    with pytest.raises(BadRequest):
        split_places(pack_places([place]), 1, 64)


# ---- service and client


def test_a_client_reads_in_place_and_from_its_fallback_what_is_missing(tier: MemoryTier) -> None:
    for number in range(5):
        assert put(tier, number)
    with serving(tier) as served:
        client = served.client()
        assert client.expect([key(number) for number in range(8)]) == 5
        for number in range(5):
            view = client.read(key(number), refused)
            assert view.readonly
            assert view == content(number)
        assert client.read(key(7), lambda: b"from the source") == b"from the source"
        assert client.read(key(0), refused) == content(0), "a read that was not announced"
        assert client.stats()["entries"] == 5
        client.close()


def test_a_lease_lasts_while_anything_refers_to_the_bytes(tier: MemoryTier) -> None:
    for number in range(3):
        assert put(tier, number)
    with serving(tier) as served:
        client = served.client()
        client.expect([key(0), key(1), key(2)])
        part = client.read(key(0), refused)[10:20]
        array = np.frombuffer(client.read(key(1), refused), np.uint8)
        client.flush()
        for number in range(3):
            tier.evict(key(number))
        last = fill(tier, 3)
        assert part == content(0)[10:20]
        assert array.tobytes() == content(1)
        assert tier.stats()["leased"] == 3, "one of them expected, and not read"
        del part, array
        gc.collect()
        client.expect([])
        assert client.stats()["leased"] == 0
        assert fill(tier, last) >= last
        client.close()


def test_bytes_stay_when_their_client_is_closed(tier: MemoryTier) -> None:
    assert put(tier, 0)
    with serving(tier) as served:
        client = served.client()
        view = client.read(key(0), refused)
        client.close()
        del client
        gc.collect()
        tier.evict(key(0))
        fill(tier, 1)
        assert view == content(0)
        assert tier.stats()["leased"] == 1
        del view
        until(lambda: tier.stats()["leased"] == 0, within_s=5.0, why="the lease of a closed client stays")


def test_a_closed_client_reads_from_its_fallback(tier: MemoryTier) -> None:
    assert put(tier, 0)
    with serving(tier) as served:
        client = served.client()
        client.close()
        client.close()
        assert client.read(key(0), lambda: b"from the source") == b"from the source"
        assert client.expect([key(0)]) == 0
        assert client.stats() == {}


def test_more_keys_than_one_message_holds_are_asked_for(tier: MemoryTier) -> None:
    assert put(tier, 0)
    with serving(tier) as served:
        client = served.client(answer_s=60.0)
        assert client.expect([*(number.to_bytes(KEY_BYTES, "big") for number in range(40_000)), key(0)]) == 1
        client.close()


@pytest.mark.parametrize(
    "nonsense",
    [b"\xff" * 64, HEAD.pack(0, 99), HEAD.pack(5, CacheMsg.LOOKUP) + b"hello", HEAD.pack(4, 77) + bytes(4)],
    ids=["length", "nothing", "cut off", "kind"],
)
def test_who_sends_nonsense_is_dropped_and_nobody_else_notices(
    tier: MemoryTier, nonsense: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert put(tier, 0)
    with serving(tier) as served:
        client, stranger = served.client(), served.stream()
        with stranger:
            stranger.sendall(nonsense)
            stranger.settimeout(20)
            while stranger.recv(1 << 12):
                pass
        assert client.read(key(0), refused) == content(0)
        client.close()
    assert "a client is dropped" in caplog.text


def test_who_asks_and_never_reads_holds_up_nobody(tier: MemoryTier) -> None:
    assert put(tier, 0)
    with serving(tier) as served:
        client, deaf = served.client(), served.stream()
        with deaf:
            deaf.settimeout(0.5)
            payload = pack_lookup([], [key(0)] * 5_000)
            with pytest.raises(TimeoutError):
                deaf.sendall(1_000 * (HEAD.pack(len(payload), CacheMsg.LOOKUP) + payload))
            assert client.read(key(0), refused) == content(0)
        tier.evict(key(0))
        client.flush()
        client.close()
        until(lambda: tier.stats()["leased"] == 0, within_s=5.0, why="its leases stay")


def test_a_service_of_something_else_is_left_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = socket.socketpair()
    with caplog.at_level(logging.WARNING, "penstock"), theirs:
        theirs.sendall(b"hello")
        client = CacheClient(ours)
        assert not client.is_there
        assert client.read(key(0), lambda: b"x") == b"x"
    assert len(caplog.records) == 1
    assert "no service of a cache" in caplog.text
