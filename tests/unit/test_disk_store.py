"""The store on disk beyond the contract: where it lies, whom it trusts, how it stays small, what it tells."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk import DiskStore
from penstock.reuse.stores.disk_files import Files
from penstock.reuse.stores.disk_format import FolderMark, encode_format
from penstock.reuse.stores.disk_scan import Verified
from penstock.reuse.stores.disk_upkeep import alone

NAMESPACE = "0123456789abcdef"
SAMPLES = 200
SEGMENT = 1 << 15


def opened(path: Path, **changed: object) -> DiskStore:
    options: dict[str, object] = {
        "max_bytes": 1 << 22,
        "small_bytes": 4096,
        "segment_bytes": SEGMENT,
        "upkeep_s": 0,
    }
    return DiskStore(path, NAMESPACE, SAMPLES, **{**options, **changed})  # type: ignore[arg-type]


def entry(sample: int, epoch: int = 0, nbytes: int = 1000) -> Entry:
    return Entry(np.random.default_rng((sample, epoch)).integers(0, 256, nbytes, np.uint8))


def fill(store: DiskStore, epoch: int = 0, samples: range = range(SAMPLES), nbytes: int = 1000) -> None:
    for sample in samples:
        assert store.put(Wanted(sample, epoch), entry(sample, epoch, nbytes))


def count_right(store: DiskStore, epochs: dict[int, int], nbytes: int = 1000) -> int:
    got = store.get_many([Wanted(*each) for each in epochs.items()])
    return sum(
        found is not None and found.values.tobytes() == entry(*each, nbytes).values.tobytes()
        for each, found in zip(epochs.items(), got, strict=True)
    )


def segments(store: DiskStore) -> list[Path]:
    return sorted(Path(store.folder, "segments").iterdir())


# ---- where it lies


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    store = opened(tmp_path / "new")
    fill(store)
    fill(store, 1, range(3), 9000)
    for found in [tmp_path / "new", *(tmp_path / "new").rglob("*")]:
        assert stat.S_IMODE(found.stat().st_mode) == (0o700 if found.is_dir() else 0o600), found
    store.close()


@pytest.mark.parametrize(
    "namespace", ["", "short", "../../../etc", "ABCDEF0123456789", "0" * 200, "0123456789abcdef/"]
)
def test_a_namespace_is_a_digest(tmp_path: Path, namespace: str) -> None:
    with pytest.raises(ConfigError, match="hexadecimal"):
        DiskStore(tmp_path, namespace, 1, 1 << 20)


@pytest.mark.parametrize(
    "changed", [{"max_bytes": 1000}, {"segment_bytes": 1}, {"segment_bytes": 1 << 40}, {"small_bytes": -1}]
)
def test_sizes_that_cannot_work_are_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        opened(tmp_path, **changed)


def test_a_store_for_another_number_of_samples_says_what_to_do(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(ConfigError, match=r"made for 200 samples, not for 7.*remove the folder"):
        DiskStore(tmp_path, NAMESPACE, 7, 1 << 20)


def test_a_store_of_another_version_says_what_to_do(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.reuse.stores.disk_format.VERSION", 99)
        newer = encode_format(FolderMark(samples=SAMPLES))
    Path(store.folder, "FORMAT").write_bytes(newer)
    with pytest.raises(ConfigError, match=r"has format 99.*remove it"):
        opened(tmp_path)


def test_a_link_in_the_place_of_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / NAMESPACE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="not a folder of this user"):
        opened(tmp_path)


def test_a_link_in_the_place_of_a_segment_is_not_followed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, samples=range(5))
    store.close()
    (segment,) = segments(store)
    segment.rename(tmp_path / "moved")
    segment.symlink_to(tmp_path / "moved")
    store = opened(tmp_path)
    assert count_right(store, dict.fromkeys(range(5), 0)) == 0
    store.close()


# ---- how it stays small


def test_dead_space_is_made_free(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for epoch in range(5):
        fill(store, epoch)
    before = store.stats()
    assert before["held_bytes"] > 4 * before["bytes"]
    assert store.compact()
    after = store.stats()
    assert after["bytes"] == before["bytes"]
    assert after["held_bytes"] < 2 * after["bytes"] + 2 * SEGMENT
    assert count_right(store, dict.fromkeys(range(SAMPLES), 4)) == SAMPLES
    assert store.verify().bad == 0
    store.close()


def test_what_is_held_is_counted_as_it_is(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    fill(store, 1, range(0, SAMPLES, 3), 6000)
    store.remove(0)
    store.compact()
    inside = [
        file
        for part in ("segments", "large")
        for file in Path(store.folder, part).rglob("*")
        if file.is_file()
    ]
    index = Path(store.folder, "index").stat().st_size
    assert store.stats()["held_bytes"] == sum(file.stat().st_size for file in inside) + index
    store.close()
    taken = sum(
        file.stat().st_size for file in Path(store.folder).rglob("*") if file.is_file() and file.exists()
    )
    store = opened(tmp_path)
    assert abs(store.stats()["held_bytes"] - taken) < 200
    store.close()


def test_a_segment_of_which_half_is_live_is_let_be(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    fill(store, 1, range(0, SAMPLES, 3))
    store.close()
    store = opened(tmp_path)
    before = segments(store)
    store.compact()
    assert segments(store) == before
    store.close()


def test_many_little_segments_become_one(tmp_path: Path) -> None:
    for sample in range(30):
        store = opened(tmp_path)
        fill(store, samples=range(sample, sample + 1))
        store.close()
    store = opened(tmp_path)
    assert len(segments(store)) == 30
    store.compact()
    assert len(segments(store)) == 1 + 30 * 1136 // SEGMENT
    assert count_right(store, dict.fromkeys(range(30), 0)) == 30
    store.close()


def test_a_reader_finds_what_compaction_moved_and_lets_go_of_the_old_file(tmp_path: Path) -> None:
    store, reader = opened(tmp_path), opened(tmp_path)
    fill(store)
    fill(store, 1, range(20))
    fill(store, 1, range(21, SAMPLES))
    store.flush()
    assert count_right(reader, {20: 0}) == 1
    old = set(segments(store))
    store.compact()
    assert old - set(segments(store))
    assert count_right(reader, dict.fromkeys(range(SAMPLES), 1) | {20: 0}) == SAMPLES
    held = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of this listing
            held.append(os.readlink(f"/proc/self/fd/{fd}"))
    assert not [name for name in held if "(deleted)" in name and str(tmp_path) in name]
    reader.close()
    store.close()


def test_large_files_that_nobody_knows_are_removed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 0, range(3), 9000)
    large = [file for file in Path(store.folder, "large").rglob("*") if file.is_file()]
    copy = large[0].with_name("c" + large[0].name[1:-3] + "0" + large[0].name[-2:])
    for orphan in (copy, large[0].with_name(copy.name + ".tmp")):
        orphan.write_bytes(large[0].read_bytes())
    store.compact()
    assert sorted(file for file in Path(store.folder, "large").rglob("*") if file.is_file()) == sorted(large)
    assert count_right(store, dict.fromkeys(range(3), 0), 9000) == 3
    store.close()


def test_only_one_process_compacts_at_a_time(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    fill(store, 1, range(0, SAMPLES, 5))
    fill(store, 1, range(1, SAMPLES, 5))
    fill(store, 1, range(2, SAMPLES, 5))
    store.flush()
    seen: list[bool] = []

    class Looks(Files):
        def sync(self, fd: int) -> None:
            mine = store._here()
            assert mine is not None
            with alone(mine.shelf) as may:
                seen.append(may)

    slow = opened(tmp_path, files=Looks())
    assert slow.compact()
    assert set(seen) == {False}
    slow.close()
    store.close()


def test_a_segment_that_is_being_written_is_let_be(tmp_path: Path) -> None:
    store, other = opened(tmp_path), opened(tmp_path)
    fill(store, samples=range(5))  # not written out: no row leads there yet
    other.compact()
    store.flush()
    assert count_right(other, dict.fromkeys(range(5), 0)) == 5
    store.close()
    other.close()


def test_a_record_that_moves_while_it_is_looked_for_is_found(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    fill(store, 1, range(20))
    fill(store, 1, range(21, SAMPLES))
    store.flush()

    class MovesFirst(Files):
        moved = False

        def open(self, path: str, flags: int) -> int:
            if "/segments/" in path and not self.moved:
                self.moved = True
                assert store.compact()
            return super().open(path, flags)

    files = MovesFirst()
    reader = opened(tmp_path, files=files)
    assert count_right(reader, {20: 0}) == 1
    assert files.moved
    assert reader.stats()["damaged"] == 0
    reader.close()
    store.close()


def test_an_entry_put_during_compaction_is_not_undone(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    stays = range(0, SAMPLES, 5)
    for sample in set(range(SAMPLES)) - set(stays):
        assert store.put(Wanted(sample, 1), entry(sample, 1))
    other = opened(tmp_path)

    class PutsBetween(Files):
        did = False

        def sync(self, fd: int) -> None:
            if not self.did:
                self.did = True
                fill(other, 2, stays[:20])
                other.remove(stays[30])
                other.flush()

    slow = opened(tmp_path, files=PutsBetween())
    store.flush()
    before = set(segments(store))
    slow.compact()
    assert before - set(segments(store))
    expected = dict.fromkeys(range(SAMPLES), 1) | dict.fromkeys(stays, 0) | dict.fromkeys(stays[:20], 2)
    del expected[stays[30]]
    assert count_right(store, expected) == SAMPLES - 1
    assert store.get(Wanted(stays[30], 0)) is None
    for each in (slow, other, store):
        each.close()


# ---- what it finds again, and tells


def test_a_lost_index_is_found_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    fill(store, 1, range(0, SAMPLES, 2))
    fill(store, 2, range(3), 9000)
    store.close()
    Path(store.folder, "index").unlink()
    store = opened(tmp_path)
    assert count_right(store, {n: int(n % 2 == 0) for n in range(3, SAMPLES)}) == SAMPLES - 3
    assert count_right(store, dict.fromkeys(range(3), 2), 9000) == 3
    assert store.rebuild() == SAMPLES
    store.close()


def test_finding_rows_again_does_not_undo_what_was_put_last(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 5)
    fill(store, 2)
    assert store.rebuild() == SAMPLES
    assert count_right(store, dict.fromkeys(range(SAMPLES), 2)) == SAMPLES
    store.close()


def test_nothing_is_removed_while_the_index_is_not_whole(tmp_path: Path) -> None:
    """Someone is killed while finding rows again: what has no row yet is not dead."""
    store = opened(tmp_path)
    fill(store)
    store.close()
    Path(store.folder, "index").unlink()
    other = opened(tmp_path)
    assert other.stats()["entries"] == SAMPLES
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.reuse.stores.disk_process.rebuild", lambda shelf: 0)
        other.close()
        Path(store.folder, "index").unlink()
        killed = opened(tmp_path)
    assert killed.stats()["entries"] == 0
    assert not killed.compact()
    killed.close()
    store = opened(tmp_path)
    assert count_right(store, dict.fromkeys(range(SAMPLES), 0)) == SAMPLES
    store.close()


def test_verifying_counts_what_is_right_dead_damaged_and_lost(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 0, range(10))
    fill(store, 1, range(4))
    store.flush()
    assert store.verify() == Verified(
        good=10, dead=4, bad=0, lost=0, files=1, bytes=segments(store)[0].stat().st_size
    )
    with open(segments(store)[0], "r+b") as raw:
        os.pwrite(raw.fileno(), b"?", 5 * 1136 + 500)
    found = store.verify()
    assert (found.good, found.dead, found.bad, found.lost) == (9, 4, 1, 1)
    store.close()


@pytest.mark.parametrize("nbytes", [1000, 9000])
def test_more_files_than_stay_open_can_be_read_at_once(
    tmp_path: Path, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.reuse.stores.disk_segments.MOST_OPEN", 4)
    store = opened(tmp_path, segment_bytes=4096)
    fill(store, 0, range(60), nbytes)
    store.flush()
    assert len(list(Path(store.folder).rglob("?" * 16))) > 15
    before = len(os.listdir("/proc/self/fd"))
    assert count_right(store, dict.fromkeys(range(60), 0), nbytes) == 60
    assert store.stats()["damaged"] == 0
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    store.close()


def test_what_a_killed_writer_left_behind_is_not_taken_for_damage(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 0, range(5))
    store.flush()
    with open(segments(store)[0], "r+b") as raw:
        raw.seek(5 * 1136)
        raw.write(b"half a record")
    found = store.verify()
    assert (found.good, found.bad, found.torn, found.lost) == (5, 0, 1, 0)
    store.close()


def test_what_was_given_stays_as_long_as_anything_refers_to_it(tmp_path: Path) -> None:
    """Memory is used again, so that of a part of an entry's values must not be."""
    store = opened(tmp_path)
    fill(store, 0, range(12), 100_000)
    held = [store.get(Wanted(sample, 0)) for sample in range(4)]
    parts = [each.values[5_000:90_000:7] for each in held if each is not None]
    held.clear()
    for _ in range(3):
        assert count_right(store, dict.fromkeys(range(4, 12), 0), 100_000) == 8
    for sample, part in enumerate(parts):
        assert np.array_equal(part, entry(sample, 0, 100_000).values[5_000:90_000:7])
    store.close()


def test_threads_may_use_one_store(tmp_path: Path) -> None:
    store = opened(tmp_path, upkeep_s=0.002)
    wrong: list[object] = []

    def use(first: int) -> None:
        for epoch in range(30):
            for sample in range(first, SAMPLES, 4):
                if not store.put(Wanted(sample, epoch), entry(sample, epoch, 300)):
                    wrong.append(sample)
            if count_right(store, dict.fromkeys(range(first, SAMPLES, 4), epoch), 300) != SAMPLES // 4:
                wrong.append(epoch)

    threads = [threading.Thread(target=use, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    store.close()
