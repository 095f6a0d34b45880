"""The memory tier in one process, and the keys of what it holds."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.accel import crc32
from penstock.cache.backing import STEP_BYTES
from penstock.cache.keys import KEY_BYTES, content_key, sample_key, scope_of
from penstock.cache.memory import LEAST_BYTES, MemoryTier
from penstock.errors import ConfigError
from tests.cache_service import content, key, put


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


def test_keys_on_disk_differ_in_contents_names_and_ranges() -> None:
    keys = {
        content_key(contents, ranges)
        for contents, ranges in [
            ("s", [("a", 0, 1)]),
            ("s", [("a", 0, None)]),
            ("s", [("a", 0, 11)]),
            ("s", [("a", 1, 1)]),
            ("s", [("b", 0, 1)]),
            ("t", [("a", 0, 1)]),
            ("s", [("a\udcff", 0, 1)]),
            ("s", [("a', 0", 1, 1)]),
            ("s", [("a", 0, 1), ("a", 1, 1)]),
            ("s", []),
        ]
    }
    assert len(keys) == 10
    assert {len(each) for each in keys} == {KEY_BYTES}


def test_keys_in_memory_differ_in_dataset_and_sample() -> None:
    keys = {
        sample_key(scope_of(name), sample) for name in ("a", "b", "a\udcff") for sample in (0, 1, 1 << 63)
    }
    assert len(keys) == 9
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
    assert tier.stats()["leased"] == 2
    assert read(tier, 0) == content(0)
    tier.leave("reader")
    assert tier.evict(key(0))
    assert tier.stats()["free_bytes"] == tier.stats()["held_bytes"]


def test_an_owner_ends_only_its_own_leases(tier: MemoryTier) -> None:
    assert put(tier, 0)
    (place,) = tier.lookup([key(0)], "one")
    assert place is not None
    tier.evict(key(0))
    tier.lookup([key(0)], "another")
    tier.leave("another")
    tier.leave("a stranger")
    assert tier.stats()["leased"] == 1
    last = fill(tier, 1)
    assert os.pread(tier.fd, place.size, place.offset) == content(0), "its memory was given to others"
    tier.leave("one")
    tier.leave("one")
    for number in range(1, last):
        tier.evict(key(number))
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
                mmap.mmap(each, tier.max_bytes)
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


def with_holes() -> tuple[MemoryTier, list[int], int]:
    """A full tier, every third of its samples evicted: it, the others, and what is larger than any hole."""
    tier, count = MemoryTier(LEAST_BYTES), 0
    while put(tier, count):
        count += 1
    for number in range(0, count, 3):
        assert tier.evict(key(number))
    stats = tier.stats()
    assert stats["free_bytes"] > 3 * stats["largest_hole"]
    return tier, [number for number in range(count) if number % 3], 2 * stats["largest_hole"]


def test_bytes_that_are_not_in_use_are_moved_until_there_is_a_hole() -> None:
    tier, kept, large = with_holes()
    view = tier.reserve(key(1000), large)
    assert view is not None
    view[:] = bytes(large)
    for number in kept:
        with tier.reading(key(number)) as data:
            assert data == content(number)
    assert all(map(tier.evict, map(key, kept)))
    view.release()
    tier.abandon(key(1000))
    assert tier.stats()["free_bytes"] == tier.stats()["largest_hole"] == LEAST_BYTES
    tier.close()


def test_bytes_that_are_in_use_are_not_moved_for_others() -> None:
    tier, kept, large = with_holes()
    places = tier.lookup([*map(key, kept)], "a batch")
    assert tier.reserve(key(1000), large) is None, "there is no hole"
    for number, place in zip(kept, places, strict=True):
        assert place is not None
        with tier.reading(key(number)) as data:
            assert data == content(number)
    assert tier.lookup([*map(key, kept)], "a batch") == places
    tier.leave("a batch")
    assert tier.reserve(key(1000), large) is not None
    tier.close()


def test_lent_memory_is_given_up_by_whoever_it_was_lent_to() -> None:
    """A process that hangs may still write there, while another one fails to read the same sample."""
    tier = MemoryTier(LEAST_BYTES)
    lent_at = tier.lend(key(1), 100)
    assert lent_at is not None
    tier.abandon(key(1))
    tier.abandon(key(1), lent_at + 4096)
    assert tier.stats()["reserved"] == 1
    assert tier.reserve(key(1), 100) is None
    tier.abandon(key(1), lent_at)
    assert tier.stats()["reserved"] == 0
    assert tier.reserve(key(1), 100) is not None
    tier.close()
