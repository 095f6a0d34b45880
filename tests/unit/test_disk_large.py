"""Large entries of the store on disk: what is replaced is written over, and nobody ever reads a mixture."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk import DiskStore
from penstock.reuse.stores.disk_files import Files
from penstock.reuse.stores.disk_index import FEW, FIRST_ROW, NO_ROW, ROW, DiskIndex, IndexRow

LARGE = 20_000


def opened(path: Path, files: Files | None = None) -> DiskStore:
    return DiskStore(
        path, "0123456789abcdef", 8, 1 << 20, small_bytes=4096, segment_bytes=1 << 15, upkeep_s=0, files=files
    )


def entry(wanted: Wanted, nbytes: int = LARGE) -> Entry:
    return Entry(np.random.default_rng(wanted).integers(0, 256, nbytes, np.uint8))


def is_there(store: DiskStore, wanted: Wanted, nbytes: int = LARGE) -> bool:
    got = store.get(wanted)
    if got is not None:
        assert got.values.tobytes() == entry(wanted, nbytes).values.tobytes()
    return got is not None


def files_of(store: DiskStore) -> list[Path]:
    return sorted(file for file in Path(store.folder, "large").rglob("*") if file.is_file())


def test_what_replaces_an_entry_is_written_over_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.put(Wanted(3, 0), entry(Wanted(3, 0)))
    (before,), held = files_of(store), store.stats()["held_bytes"]
    inode = before.stat().st_ino
    for epoch in range(1, 4):
        assert store.put(Wanted(3, epoch), entry(Wanted(3, epoch)))
        assert is_there(store, Wanted(3, epoch))
        assert not is_there(store, Wanted(3, epoch - 1))
    (after,) = files_of(store)
    assert (after.stat().st_ino, store.stats()["held_bytes"]) == (inode, held)
    assert after.name != before.name, "an old row would lead to it"
    assert store.verify().good == 1
    store.close()


def test_one_of_another_length_has_a_file_of_its_own(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for epoch, nbytes in enumerate((LARGE, LARGE + 5000, LARGE - 5000, 1000, LARGE)):
        assert store.put(Wanted(3, epoch), entry(Wanted(3, epoch), nbytes))
        assert is_there(store, Wanted(3, epoch), nbytes)
        store.flush()
        assert len(files_of(store)) == (nbytes > 4096)
    store.close()


def test_a_file_that_was_cut_is_not_written_over(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.put(Wanted(3, 0), entry(Wanted(3, 0)))
    (before,) = files_of(store)
    os.truncate(before, 100)
    with open(before, "rb") as held:  # so that nobody gets its number
        assert store.put(Wanted(3, 1), entry(Wanted(3, 1)))
        assert is_there(store, Wanted(3, 1))
        (after,) = files_of(store)
        assert after.stat().st_ino != os.fstat(held.fileno()).st_ino
    store.close()


def test_a_file_that_is_read_is_not_written_over(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.put(Wanted(3, 0), entry(Wanted(3, 0)))
    (before,) = files_of(store)
    with open(before, "rb", buffering=0) as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        start = reader.read(5000)
        assert store.put(Wanted(3, 1), entry(Wanted(3, 1)))
        assert is_there(store, Wanted(3, 1))
        assert entry(Wanted(3, 0)).values.tobytes() in start + reader.read()
    store.close()


def test_readers_hold_the_lock_as_long_as_they_read(tmp_path: Path) -> None:
    class Watched(Files):
        def read_into(self, fd: int, memory: memoryview, offset: int) -> int:
            (path,) = files_of(store)
            with open(path, "rb") as other:
                try:
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    held.append(True)
            return super().read_into(fd, memory, offset)

    held: list[bool] = []
    nbytes = 100_000  # smaller ones are read in another way
    store = opened(tmp_path, Watched())
    assert store.put(Wanted(3, 0), entry(Wanted(3, 0), nbytes))
    assert is_there(store, Wanted(3, 0), nbytes)
    assert held
    (path,) = files_of(store)
    with open(path, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody has it any more
    store.close()


def test_a_file_that_is_being_written_over_is_not_read(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.put(Wanted(3, 0), entry(Wanted(3, 0)))
    (path,) = files_of(store)
    with open(path, "rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert not is_there(store, Wanted(3, 0))
    assert is_there(store, Wanted(3, 0))
    store.close()


class Meanwhile(Files):
    """Something happens when a file is opened to be written over."""

    def __init__(self) -> None:
        self.happens: Callable[[], object] | None = None

    def open(self, path: str, flags: int) -> int:
        fd = super().open(path, flags)
        if "/large/" in path and flags & os.O_RDWR and not flags & os.O_CREAT and self.happens:
            happens, self.happens = self.happens, None
            happens()
        return fd


def test_a_file_that_another_has_taken_is_not_written_over(tmp_path: Path) -> None:
    files = Meanwhile()
    store, other = opened(tmp_path, files), opened(tmp_path)
    assert store.put(Wanted(3, 0), entry(Wanted(3, 0)))
    files.happens = lambda: other.put(Wanted(3, 2), entry(Wanted(3, 2)))
    assert store.put(Wanted(3, 1), entry(Wanted(3, 1)))
    assert is_there(store, Wanted(3, 1))
    assert len(files_of(store)) == 1
    assert store.verify().lost == 0
    other.close()
    store.close()


def test_verifying_while_entries_are_replaced_finds_no_damage(tmp_path: Path) -> None:
    store, other = opened(tmp_path), opened(tmp_path)
    for sample in range(8):
        assert store.put(Wanted(sample, 0), entry(Wanted(sample, 0)))

    def replace_all(*_: object) -> None:
        for sample in range(8):
            assert store.put(Wanted(sample, 1), entry(Wanted(sample, 1)))

    found = other.verify(replace_all)
    assert (found.bad, found.lost) == (0, 0)
    other.close()
    store.close()


@given(st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3), st.integers(0, 2**32 - 1))
def test_one_row_is_as_rows_are(words: list[int], offset: int) -> None:
    with TemporaryDirectory() as folder:
        index = DiskIndex(Files(), folder, 9)
        row = IndexRow(words[0], words[1] - 2**63, words[2], offset)
        with index.locked():
            index.write({7: row, 3: row})
        for sample in (3, 7):
            assert index.row(sample) == (row if row.segment else NO_ROW)
            assert index.table(np.array([sample]))[0].item()[:4] == index.row(sample)
            assert index.rows([sample] * 2 * FEW) == [index.row(sample)] * 2 * FEW
        with index.locked():
            index.write({3: NO_ROW})
            index.files.write(index.fd, [bytes([words[0] & 255 ^ 1])], FIRST_ROW + ROW.itemsize * 7)
        assert index.row(3) == index.row(7) == index.row(8) == NO_ROW
        index.close()


class AfterRow(Files):
    """Calls `then` as soon as a row leads somewhere, once."""

    then: Callable[[], None] | None = None

    def write(self, fd: int, pieces: Sequence[bytes | memoryview], offset: int) -> None:
        super().write(fd, pieces, offset)
        is_row = offset >= FIRST_ROW and len(pieces) == 1 and len(pieces[0]) == ROW.itemsize
        if is_row and any(bytes(pieces[0])) and self.then is not None:
            then, self.then = self.then, None
            then()


def test_what_has_its_row_can_be_read(tmp_path: Path) -> None:
    files, there = AfterRow(), list[bool]()
    ours, theirs = opened(tmp_path, files), opened(tmp_path)
    for epoch in range(3):  # a new file, then the same written over
        wanted = Wanted(3, epoch)
        files.then = lambda wanted=wanted: there.append(is_there(theirs, wanted))  # type: ignore[misc]
        assert ours.put(wanted, entry(wanted))
    assert there == [True] * 3
    assert theirs.stats()["damaged"] == 0


def test_a_file_system_without_locks_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, wanted, flock = opened(tmp_path), Wanted(3, 0), fcntl.flock
    assert store.put(wanted, entry(wanted))
    before = len(os.listdir("/proc/self/fd"))

    def none(fd: int, how: int) -> None:
        if how & fcntl.LOCK_SH:
            raise OSError(errno.ENOLCK, "no locks available")
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", none)
    assert not is_there(store, wanted)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_is_gone_when_it_is_to_be_written_over_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, rename = opened(tmp_path), Files.rename
    assert store.put(Wanted(3, 0), entry(Wanted(3, 0)))

    def removed(self: Files, old: str, new: str) -> None:
        monkeypatch.undo()
        self.unlink(old)
        rename(self, old, new)

    monkeypatch.setattr(Files, "rename", removed)
    assert store.put(Wanted(3, 1), entry(Wanted(3, 1)))
    assert is_there(store, Wanted(3, 1))
    assert len(files_of(store)) == 1
    assert store.stats()["read_only"] == 0


@pytest.mark.parametrize("asked", [1, FEW, FEW + 1, 60])
def test_a_few_and_many_are_found_alike(tmp_path: Path, asked: int) -> None:
    """Large and small, some of another epoch, one that is damaged, some that are not there, in any order."""
    store = DiskStore(tmp_path, "0123456789abcdef", 60, 4 << 20, small_bytes=4096, upkeep_s=0)
    size = {sample: LARGE if sample % 3 else 1000 for sample in range(60)}
    for sample in range(50):
        assert store.put(Wanted(sample, sample % 2), entry(Wanted(sample, sample % 2), size[sample]))
    store.flush()
    whole = {sample for sample in range(50) if sample % 2}
    damaged = next(sample for sample in whole if size[sample] == LARGE)
    path = next(
        file for file in files_of(store) if entry(Wanted(damaged, 1)).values.tobytes() in file.read_bytes()
    )
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    order = np.random.default_rng(0).permutation(60).tolist()
    for start in range(0, 60, asked):
        wanted = [Wanted(sample, 1) for sample in order[start : start + asked]]
        for want, got in zip(wanted, store.get_many(wanted), strict=True):
            assert (got is not None) == (want.sample in whole - {damaged}), want
            assert got is None or got.values.tobytes() == entry(want, size[want.sample]).values.tobytes()
    stats = store.stats()
    assert (stats["found"], stats["missed"], stats["damaged"]) == (len(whole) - 1, 61 - len(whole), 1)
    store.close()
