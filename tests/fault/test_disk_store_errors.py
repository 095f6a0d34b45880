"""A disk that is full or fails under the store: it becomes read-only, says so once, reads on, and nothing is raised."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import random
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.reuse.stores import disk_files, disk_process
from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk import DiskStore
from penstock.reuse.stores.disk_files import Files
from penstock.reuse.stores.disk_process import COUNTED
from penstock.reuse.stores.tally import Tally

FULL = os.environ.get("PENSTOCK_FULL") == "1"
NAMESPACE = "abcdefabcdefabcd"
SAMPLES = 50
ROOT = Path(__file__).parents[2]


def opened(path: Path, files: Files | None = None, max_bytes: int = 1 << 20) -> DiskStore:
    return DiskStore(
        path, NAMESPACE, SAMPLES, max_bytes, small_bytes=4096, segment_bytes=1 << 14, upkeep_s=0, files=files
    )


def entry(wanted: Wanted) -> Entry:
    rng = np.random.default_rng(wanted)
    size = 6000 if wanted.sample % 10 == 9 else int(rng.integers(10, 2500))
    return Entry(rng.integers(0, 256, size, np.uint8), b"%d at %d" % wanted)


def is_right(got: Entry | None, wanted: Wanted) -> bool:
    return got is not None and got.values.tobytes() == entry(wanted).values.tobytes()


class Failing(Files):
    """`fails(what, number)`: whether a call of this kind fails, being the how-manieth of all."""

    CALLS = (
        "open",
        "read",
        "write",
        "reserve",
        "cut",
        "sync",
        "rename",
        "unlink",
        "make_folder",
        "sync_folder",
    )

    def __init__(self, fails: Callable[[str, int], bool], number: int = errno.EIO) -> None:
        self.count, self.failed = 0, list[tuple[str, object]]()
        self.unsynced: set[int] = set()
        """Files of which a sync has failed."""
        for name in self.CALLS:
            setattr(self, name, self._wrapped(name, getattr(super(), name), fails, number))

    def _wrapped(self, name: str, call: Any, fails: Callable[[str, int], bool], number: int) -> Any:
        def wrapped(first: Any, *rest: Any) -> Any:
            self.count += 1
            if name == "sync":
                assert os.fstat(first).st_ino not in self.unsynced, "a sync that failed is asked for again"
            if fails(name, self.count):
                self.failed.append((name, first))
                if name == "sync":
                    self.unsynced.add(os.fstat(first).st_ino)
                raise OSError(number, os.strerror(number))
            return call(first, *rest)

        return wrapped


def work(store: DiskStore, seed: int, latest: dict[int, int]) -> None:
    rng = random.Random(seed)
    for epoch in range(6):
        for sample in rng.sample(range(SAMPLES), 25):
            wanted = Wanted(sample, epoch)
            if store.put(wanted, entry(wanted)):
                latest[sample] = epoch
            if rng.random() < 0.05:
                store.remove(rng.randrange(SAMPLES))
        store.flush()
        store.compact()
        asked = [Wanted(sample, at) for sample in range(SAMPLES) for at in (epoch, max(0, epoch - 1))]
        for wanted, got in zip(asked, store.get_many(asked), strict=True):
            assert got is None or is_right(got, wanted)
    store.stats()
    store.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_whatever_call_fails_bytes_are_right_and_nothing_is_raised(tmp_path: Path, number: int) -> None:
    failed = set[str]()
    for seed in range(2000 if FULL else 60):
        rng = random.Random(seed)
        one_in = rng.choice([3, 10, 30, 100, 300])
        only = rng.choice([None, *Failing.CALLS])
        files = Failing(lambda what, _: only in (None, what) and rng.randrange(one_in) == 0, number)  # noqa: B023
        path = tmp_path / "store"
        try:
            work(opened(path, files), seed, {})
            after, latest = (
                opened(path),
                dict[int, int](),
            )  # and without failures all is well, whatever was left
            work(after, seed, latest)
        finally:
            shutil.rmtree(path, ignore_errors=True)
        failed.update(what for what, _ in files.failed)
    assert failed >= {"open", "read", "write", "reserve", "sync", "rename", "unlink", "sync_folder"}


@pytest.mark.parametrize("what", ["write", "reserve"])
def test_a_write_that_fails_makes_the_store_read_only_with_one_warning(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = False
    store = opened(tmp_path, Failing(lambda name, _: broken and name == what, errno.ENOSPC))
    first = [Wanted(sample, 0) for sample in range(10)]
    assert all(store.put(wanted, entry(wanted)) for wanted in first)
    store.flush()
    broken = True
    with caplog.at_level(logging.WARNING, "penstock"):
        for sample in range(SAMPLES):
            store.put(Wanted(sample, 1), entry(Wanted(sample, 1)))
        store.flush()
        assert not store.put(Wanted(30, 1), entry(Wanted(30, 1)))
        broken = False
        assert not store.put(
            Wanted(30, 1), entry(Wanted(30, 1))
        )  # a disk that has failed is not trusted again
    assert store.stats()["read_only"]
    assert len(caplog.records) == 1
    assert "is full" in caplog.text
    assert sum(is_right(got, wanted) for wanted, got in zip(first, store.get_many(first), strict=True)) >= 1
    store.close()


@pytest.mark.parametrize("after", [5, 40, 80])
def test_a_sync_that_failed_is_never_asked_again(tmp_path: Path, after: int) -> None:
    files = Failing(lambda name, count: name == "sync" and count > after)
    store = opened(tmp_path, files)
    work(store, 0, {})
    assert files.unsynced


def test_a_store_that_cannot_be_opened_keeps_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path, Failing(lambda name, _: name == "reserve", errno.ENOSPC))
    assert not store.put(Wanted(0, 0), entry(Wanted(0, 0)))
    assert store.get(Wanted(0, 0)) is None
    assert store.stats()["entries"] == 0
    assert "cannot be opened" in caplog.text
    assert not list(tmp_path.rglob("*.tmp"))
    store.close()


PROGRAM = """
    import sys, logging
    import numpy as np
    from penstock.reuse.stores.disk import DiskStore
    from penstock.reuse.stores.contract import Entry, Wanted
    logging.basicConfig()
    store = DiskStore({path!r}, "abcdefabcdefabcd", {samples}, 1 << 30, upkeep_s=0)
    kept = [n for n in range(2000) if store.put(Wanted(n % {samples}, n), Entry(np.full({size}, n % 251, np.uint8)))]
    store.flush()
    got = store.get_many([Wanted(n % {samples}, n) for n in kept])
    right = [g is not None and bool((g.values == n % 251).all()) for g, n in zip(got, kept)]
    assert all(r or g is None for r, g in zip(right, got))
    print(len(kept), sum(right), store.stats().get("read_only", -1))
    store.close()
"""


def on_a_small_disk(tmp_path: Path, program: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a program with a disk of 2 MB, which nobody else sees and which goes with it."""
    (tmp_path / "disk").mkdir()
    program = textwrap.dedent(program.format(path=str(tmp_path / "disk" / "store"), **options))
    mount = f"mount -t tmpfs -o size=2m none {tmp_path}/disk"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("samples", "size", "kept_range"),
    [(2000, 6000, (50, 450)), (2000, 40_000, (10, 60)), (10**6, 100, (0, 0))],
    ids=["segments", "large files", "no room for the index"],
)
def test_a_small_disk_that_fills_up_is_no_failure(
    tmp_path: Path, samples: int, size: int, kept_range: tuple[int, int]
) -> None:
    done = on_a_small_disk(tmp_path, PROGRAM, samples=samples, size=size)
    kept, _, _ = map(int, done.stdout.split())
    assert kept_range[0] <= kept <= kept_range[1], done.stdout
    assert done.stderr.count("WARNING") == 1, done.stderr


LOADER = """
    import logging
    from penstock import DataLoader, Reuse, StagedDataset, transforms as T
    from tests.unit.test_jpeg_parts import jpeg_of, photo

    def read(index):
        return jpeg_of(photo(60, 80, index), quality=70), index

    logging.basicConfig()
    reuse = Reuse(times=2, split=1, store="disk", path={path!r})
    dataset = StagedDataset(read, [T.Resize((150, 150)), T.RandomHorizontalFlip()], 60)
    loader = DataLoader(dataset, 4, seed=1, num_workers=2, reuse=reuse)
    assert [len(list(loader)) for _ in range(3)] == [15] * 3
    said = loader.stats()["reuse"]
    print(said["entries"], said["refused"], said["read_only"])
    print(loader.explain())
"""


def test_all_workers_of_all_epochs_say_once_that_a_disk_is_full(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    done = on_a_small_disk(tmp_path, LOADER)
    assert done.stderr.count("WARNING") == 1, done.stderr
    assert "is full" in done.stderr
    assert "Make room on it" in done.stderr
    numbers, _, explained = done.stdout.partition("\n")
    entries, refused, read_only = map(int, numbers.split())
    assert 0 < entries < 60
    assert refused > 0
    assert read_only == 1
    assert f"; kept {entries} of 60 samples so far in {tmp_path}" in explained
    assert "no more can be kept: the disk is full or fails" in explained


def test_those_who_count_together_say_once_that_a_store_cannot_be_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tally, full = Tally(COUNTED), Failing(lambda name, _: name == "reserve", errno.ENOSPC)
    stores = [DiskStore(tmp_path, NAMESPACE, SAMPLES, 1 << 20, files=full, tally=tally) for _ in range(3)]
    assert not any(store.is_open for store in stores)
    assert len(caplog.records) == 1
    assert [store.stats()["read_only"] for store in stores] == [1, 1, 1]


def test_a_lock_that_is_not_let_go_is_not_waited_for_for_ever_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk_files.locked.__wrapped__, "__defaults__", (0.05,))
    monkeypatch.setattr(disk_process, "LOCKED_OUT_S", 3600.0)
    store = opened(tmp_path)
    assert store.put(Wanted(0, 0), entry(Wanted(0, 0)))
    with open(tmp_path / NAMESPACE / "lock", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        store.flush()
        assert "does not let go" in caplog.text
        began_s = time.monotonic()
        for sample in range(1, SAMPLES):
            assert not store.put(Wanted(sample, 0), entry(Wanted(sample, 0)))
            store.flush()
        assert time.monotonic() - began_s < 0.05 * SAMPLES  # it is not waited for each time
        assert store.get(Wanted(1, 0)) is None
        assert is_right(store.get(Wanted(0, 0)), Wanted(0, 0))
        monkeypatch.setattr(disk_process, "LOCKED_OUT_S", 0.0)
        mine = store._here()
        assert mine is not None
        mine._locked_out_until_s = 0.0
        store.flush()
        assert not store.put(Wanted(9, 0), entry(Wanted(9, 0)))
    assert all(store.put(Wanted(sample, 0), entry(Wanted(sample, 0))) for sample in range(1, SAMPLES))
    store.close()
    assert len(caplog.records) == 1
    store = opened(tmp_path)
    assert store.stats()["read_only"] == 0
    assert all(is_right(store.get(Wanted(sample, 0)), Wanted(sample, 0)) for sample in range(SAMPLES))
    store.close()


def test_a_store_that_is_closed_while_another_has_its_lock_lets_go_of_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_files.locked.__wrapped__, "__defaults__", (0.05,))
    before = len(os.listdir("/proc/self/fd"))
    store = opened(tmp_path)
    assert store.put(Wanted(0, 0), entry(Wanted(0, 0)))
    with open(tmp_path / NAMESPACE / "lock", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        store.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_sweep_that_takes_a_new_large_file_for_a_dead_writers_costs_that_entry_only(tmp_path: Path) -> None:
    other = opened(tmp_path)

    class SweptFirst(Files):
        swept = False

        def open(self, path: str, flags: int) -> int:
            fd = super().open(path, flags)
            if "/large/" in path and flags & os.O_EXCL and not self.swept:
                self.swept = True
                other.compact()
            return fd

    store = opened(tmp_path, SweptFirst())
    large = [Wanted(sample, 0) for sample in range(9, SAMPLES, 10)]
    assert [store.put(wanted, entry(wanted)) for wanted in large] == [False, True, True, True, True]
    assert store.stats()["read_only"] == 0
    assert [is_right(got, wanted) for got, wanted in zip(other.get_many(large), large, strict=True)][1:] == [
        True
    ] * 4
    store.close()
    other.close()
