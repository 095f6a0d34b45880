"""Damage to the store on disk: every byte that is cut off, every bit that flips. Never wrong bytes, never an error.

The store is small, so that all of it can be tried. Its files are damaged in two ways: under a store that is open, which must notice at
each read, and before one is opened, with the machine started anew, so that everything is read to find the entries again.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk import DiskStore
from penstock.reuse.stores.disk_files import Files
from penstock.reuse.stores.disk_index import FIRST_ROW, ROW
from penstock.reuse.stores.disk_records import HEAD
from tests.fault.rewritten import AnotherBoot, Unsynced, write_over

NAMESPACE = "00c0ffee00c0ffee"
SAMPLES = 6
SHAPES = [(), (0, 3), (5,), (7, 9), (3, 4, 5)]
USED_OF_HEAD = 560
"""Bytes before the first row that mean anything; the rest of that page is empty."""
USED_OF_SEGMENT = 900
"""Bytes of the segment that hold records; what follows was only taken."""


def entry(sample: int) -> Entry:
    rng = np.random.default_rng(sample)
    if sample == SAMPLES - 1:
        return Entry(rng.integers(0, 256, 700, np.uint8), b"large")
    return Entry(rng.standard_normal(SHAPES[sample]).astype("<f2"), b"%d" % sample * sample)


WANTED = [Wanted(sample, 5) for sample in range(SAMPLES)]
RIGHT = [entry(sample) for sample in range(SAMPLES)]


def opened(path: str, files: Files | None = None) -> DiskStore:
    return DiskStore(path, NAMESPACE, SAMPLES, 1 << 18, small_bytes=512, upkeep_s=0, files=files)


def is_right(got: Entry, sample: int) -> bool:
    right = RIGHT[sample]
    return (
        got.values.dtype == right.values.dtype
        and got.values.shape == right.values.shape
        and got.values.tobytes() == right.values.tobytes()
        and got.extra == right.extra
    )


def look(store: DiskStore) -> int:
    """How many entries there are; all of them are right."""
    found = [(got, sample) for sample, got in enumerate(store.get_many(WANTED)) if got is not None]
    assert all(is_right(got, sample) for got, sample in found)
    return len(found)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A store that nobody closed."""
    root = tmp_path / "stores"
    store = opened(str(root / "first"))
    assert all(store.put(wanted, right) for wanted, right in zip(WANTED, RIGHT, strict=True))
    store.flush()
    shutil.copytree(root / "first" / NAMESPACE, root / NAMESPACE)
    store.close()
    shutil.rmtree(root / "first")
    (segment,) = (root / NAMESPACE / "segments").iterdir()
    assert not any(segment.read_bytes()[USED_OF_SEGMENT:])
    assert sum(file.stat().st_size for file in files_of(root)) < 64 << 10
    return root


def files_of(root: Path) -> list[Path]:
    return sorted(file for file in root.rglob("*") if file.is_file())


def records_of(root: Path) -> list[Path]:
    return [file for file in files_of(root) if {"segments", "large"} & set(file.parts)]


def test_every_bit_that_flips_in_a_record_is_noticed_at_the_next_read(made: Path) -> None:
    store = opened(str(made))
    assert look(store) == SAMPLES
    flips = harmless = 0
    for file in records_of(made):
        whole = file.read_bytes()
        with open(file, "r+b", buffering=0) as raw:
            for at in places(file, len(whole)):
                for bit in range(8):
                    os.pwrite(raw.fileno(), bytes([whole[at] ^ 1 << bit]), at)
                    found = look(store)
                    assert found >= SAMPLES - 1
                    flips, harmless = flips + 1, harmless + (found == SAMPLES)
                os.pwrite(raw.fileno(), whole[at : at + 1], at)
    assert look(store) == SAMPLES
    used = sum(HEAD.size + right.values.nbytes + len(right.extra) for right in RIGHT)
    assert flips - harmless == 8 * used
    assert store.stats()["damaged"] == 8 * used
    store.close()


def test_every_bit_that_flips_in_a_row_costs_one_entry_at_most(made: Path) -> None:
    store = opened(str(made))
    index = made / NAMESPACE / "index"
    rows = index.read_bytes()[FIRST_ROW:]
    assert len(rows) == SAMPLES * ROW.itemsize
    with open(index, "r+b", buffering=0) as raw:
        for at in range(8 * len(rows)):
            os.pwrite(raw.fileno(), bytes([rows[at // 8] ^ 1 << at % 8]), FIRST_ROW + at // 8)
            assert look(store) == SAMPLES - 1
            os.pwrite(raw.fileno(), rows[at // 8 : at // 8 + 1], FIRST_ROW + at // 8)
    assert look(store) == SAMPLES
    store.close()


def test_a_record_that_is_cut_off_anywhere_is_noticed_at_the_next_read(made: Path) -> None:
    store = opened(str(made))
    last = look(store)
    for file in records_of(made):
        for size in reversed(places(file, file.stat().st_size)):
            os.truncate(file, size)
            assert last - 1 <= look(store) <= last  # records before the cut are there
            last = look(store)
    assert last == 0
    store.close()


def damaged_then_opened(made: Path, file: Path, data: bytes, whole: bytes, files: Files) -> int:
    """Open a store one of whose files has other content; how many entries it has. Everything is as before afterwards."""
    kept = {other: other.read_bytes() for other in files_of(made) if other != file}
    write_over(file, data)
    store = opened(str(made), files)
    found = look(store)
    assert store.put(Wanted(0, 9), RIGHT[0])
    assert store.get(Wanted(0, 9)) is not None
    store.close()
    for other in files_of(made):
        if other not in kept:
            other.unlink()
    for other, content in kept.items():
        write_over(other, content)
    write_over(file, whole)
    return found


def files_to_open_with(made: Path, files: Files) -> list[Path]:
    """Records are read when a store is opened only if its index is not trusted."""
    return [file for file in files_of(made) if isinstance(files, AnotherBoot) or file not in records_of(made)]


def places(file: Path, size: int) -> list[int]:
    end = USED_OF_SEGMENT if file.parent.name == "segments" else size
    return [at for at in range(end) if file.name != "index" or at < USED_OF_HEAD or at >= FIRST_ROW]


@pytest.mark.parametrize("files", [Unsynced(), AnotherBoot()], ids=["same boot", "another boot"])
def test_a_store_opens_with_any_byte_changed(made: Path, files: Files) -> None:
    rng = random.Random(0)
    for file in files_to_open_with(made, files):
        whole = file.read_bytes()
        for at in places(file, len(whole)):
            data = bytearray(whole)
            data[at] ^= 1 << rng.randrange(8)
            found = damaged_then_opened(made, file, bytes(data), whole, files)
            assert found >= SAMPLES - 1, (file, at)


@pytest.mark.parametrize("files", [Unsynced(), AnotherBoot()], ids=["same boot", "another boot"])
def test_a_store_opens_with_any_file_cut_off_anywhere(made: Path, files: Files) -> None:
    for file in files_to_open_with(made, files):
        whole = file.read_bytes()
        last = SAMPLES
        for size in reversed(places(file, len(whole))):
            found = damaged_then_opened(made, file, whole[:size], whole, files)
            if file in records_of(made):
                assert found <= last  # records before the cut are there
                last = found
            else:
                assert found == SAMPLES, (file, size)


@pytest.mark.parametrize("name", ["index", "FORMAT", "lock", "users", "compact"])
def test_a_store_opens_without_any_of_its_small_files(made: Path, name: str) -> None:
    (made / NAMESPACE / name).unlink(missing_ok=True)
    store = opened(str(made))
    assert look(store) == SAMPLES
    store.close()


def test_records_of_another_namespace_are_not_read(made: Path) -> None:
    other = "1" * 16
    (made / NAMESPACE).rename(made / other)
    store = DiskStore(made, other, SAMPLES, 1 << 18, small_bytes=512, upkeep_s=0)
    assert store.get_many(WANTED) == [None] * SAMPLES
    assert store.stats()["damaged"] == SAMPLES
    store.close()
