"""The disk tier: slots and lifetimes."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from penstock.cache.disk import PROBES, DiskTier
from penstock.cache.keys import ContentKeys, content_key
from penstock.reuse.stores.disk_listing import clear, listing
from tests.cache_service import content, key
from tests.fault.rewritten import Unsynced


def opened(path: Path, *, entries: int = 100, max_bytes: int = 1 << 22, persistent: bool = False) -> DiskTier:
    return DiskTier(
        path,
        entries=entries,
        max_bytes=max_bytes,
        persistent=persistent,
        contents="of version 1" if persistent else "",
        upkeep_s=0,
        files=Unsynced(),
    )


def test_bytes_are_returned_by_their_key(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    for number in range(100):
        assert tier.put(key(number), content(number))
    assert tier.put(key(0), b"ignored: a key never means other bytes")
    found = tier.get_many([key(number) for number in range(120)])
    assert found == [*map(content, range(100)), *[None] * 20]
    assert key(5) in tier
    assert key(105) not in tier
    assert tier.stats()["entries"] == 100
    tier.close()


def test_an_empty_and_a_large_entry_are_entries(tmp_path: Path) -> None:
    tier = opened(tmp_path, max_bytes=1 << 24)
    large = bytes(range(256)) * (3 << 12)
    assert tier.put(key(0), b"")
    assert tier.put(key(1), large)
    assert tier.get_many([key(0), key(1)]) == [b"", large]
    tier.close()


def test_keys_of_one_slot_are_told_apart(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    keys = [bytes(8) + number.to_bytes(8, "big") for number in range(2, 2 * PROBES + 4, 2)]
    kept = [tier.put(each, each) for each in keys]
    assert kept == [True] * PROBES + [False] * (len(keys) - PROBES)
    assert tier.get_many(keys) == [*keys[:PROBES], *[None] * (len(keys) - PROBES)]
    assert tier.remove(keys[3])
    assert not tier.remove(keys[3])
    assert tier.put(keys[-1], keys[-1])
    assert tier.get(keys[-1]) == keys[-1]
    assert tier.get(keys[7]) == keys[7]
    tier.close()


def test_nearly_all_expected_entries_have_a_slot(tmp_path: Path) -> None:
    tier = opened(tmp_path, entries=1 << 12, max_bytes=1 << 24)
    assert sum(not tier.put(key(number), b"") for number in range(1 << 12)) < 15
    tier.close()


def test_keys_that_differ_in_a_bit_that_the_index_does_not_hold_are_told_apart(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    first, second = bytes(16), bytes(8) + b"\1" + bytes(7)
    assert tier.put(first, b"first")
    assert tier.get(second) is None
    tier.close()


def test_a_full_tier_refuses_and_has_room_again_when_told_to_remove(tmp_path: Path) -> None:
    tier = opened(tmp_path, entries=1000)
    kept = [number for number in range(400) if tier.put(key(number), content(number))]
    assert 100 < len(kept) < 400
    assert tier.stats()["held_bytes"] <= 1 << 22
    for number in kept[: len(kept) // 2]:
        assert tier.remove(key(number))
    tier.flush()
    assert tier.store.compact()
    assert tier.put(key(1000), content(1000))
    assert tier.get_many([key(number) for number in kept[len(kept) // 2 :]]) == [
        content(number) for number in kept[len(kept) // 2 :]
    ]
    assert tier.stats()["held_bytes"] <= 1 << 22
    tier.close()


def test_a_persistent_tier_is_found_again_and_another_is_not(tmp_path: Path) -> None:
    tier = opened(tmp_path, persistent=True)
    assert tier.put(key(0), content(0))
    tier.close()
    again = opened(tmp_path, entries=90, persistent=True)
    assert again.get(key(0)) == content(0)
    own = opened(tmp_path)
    assert own.get(key(0)) is None
    assert own.put(key(1), content(1))
    own.close()
    assert again.get(key(1)) is None
    again.close()
    (left,) = listing(tmp_path)
    assert not left.temporary
    assert (left.kind, left.about) == ("bytes", "bytes of files")


def test_other_contents_have_a_tier_of_their_own(tmp_path: Path) -> None:
    tiers = [
        DiskTier(tmp_path, entries=100, max_bytes=1 << 22, persistent=True, contents=name, upkeep_s=0)
        for name in ("version 1", "version 2")
    ]
    assert tiers[0].put(key(0), content(0))
    tiers[0].flush()
    assert tiers[1].get(key(0)) is None
    for tier in tiers:
        tier.close()
    with pytest.raises(ValueError, match="needs contents"):
        DiskTier(tmp_path, entries=100, max_bytes=1 << 22, persistent=True)


def test_keys_that_come_at_once_get_a_slot_each(tmp_path: Path) -> None:
    for trial in range(5):
        tier = opened(tmp_path / str(trial), entries=8, max_bytes=1 << 25)
        keys = [bytes(8) + number.to_bytes(8, "big") for number in range(2, 18, 2)]
        data, begin = bytes(1 << 20), threading.Barrier(len(keys))

        def put(
            each: bytes, tier: DiskTier = tier, data: bytes = data, begin: threading.Barrier = begin
        ) -> None:
            begin.wait(20)
            assert tier.put(each, data)

        threads = [threading.Thread(target=put, args=(each,)) for each in keys]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(each in tier for each in keys)
        tier.close()


def test_keys_of_many_samples_are_those_of_each() -> None:
    odd = "s3://b/\udcff 'x\" é"
    for contents in ("", "plain", odd * 100, repr((["a"], 1))):
        keys = ContentKeys(contents)
        for ranges in ([], [("a", 0, None)], [(odd, 5, 9), ("a", 0, 1)]):
            assert keys(ranges) == content_key(contents, ranges)


def test_room_and_writing_are_told(tmp_path: Path) -> None:
    tier = opened(tmp_path, max_bytes=1 << 20)
    assert tier.is_writable
    assert tier.has_room(1000)
    assert not tier.has_room(1 << 20)
    tier.close()
    assert not tier.is_writable


def test_what_a_killed_run_left_is_removed_by_the_next_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    killed = opened(tmp_path)
    assert killed.put(key(0), content(0))
    killed.store.close()  # as its process's end would, without the removal
    living = opened(tmp_path)
    assert [Path(living.store.folder).name] == [each.namespace for each in listing(tmp_path)]
    third = opened(tmp_path)
    assert len(listing(tmp_path)) == 2
    third.close()
    living.close()
    assert listing(tmp_path) == []


def test_it_is_listed_verified_and_cleared_as_other_stores_are(tmp_path: Path) -> None:
    tier = opened(tmp_path, persistent=True)
    assert all(tier.put(key(number), content(number)) for number in range(10))
    assert tier.store.verify().good == 10
    gone, kept = clear(tmp_path)
    assert (len(gone), len(kept)) == (0, 1), "it is in use"
    tier.close()
    gone, kept = clear(tmp_path)
    assert (len(gone), len(kept)) == (1, 0)


def test_a_path_that_cannot_be_written_costs_time_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "penstock"):
        tier = opened(tmp_path / "file")
        assert not tier.put(key(0), content(0))
        assert tier.get(key(0)) is None
        assert not tier.remove(key(0))
        assert tier.stats()["entries"] == 0
        tier.close()
    assert len(caplog.records) == 1
    assert "cannot be opened" in caplog.text
