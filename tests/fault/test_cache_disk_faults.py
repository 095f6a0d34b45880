"""The disk tier of the cache under damage, a failing disk and kills. Never other bytes, never an error. Its store has tests of its own beside this."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from penstock.cache.disk import DiskTier
from penstock.reuse.stores.disk_files import Files
from tests.cache_service import content, end, key
from tests.fault.programs import until
from tests.fault.rewritten import Unsynced
from tests.fault.test_disk_store_errors import Failing
from tests.forks import start

FULL = os.environ.get("PENSTOCK_FULL") == "1"


def opened(path: Path, files: Files | None = None, upkeep_s: float = 0.0) -> DiskTier:
    return DiskTier(
        path,
        entries=60,
        max_bytes=1 << 20,
        persistent=True,
        contents="of version 1",
        upkeep_s=upkeep_s,
        files=files or Unsynced(),
    )


def test_bytes_that_rot_are_dropped_with_one_warning_and_can_be_put_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = opened(tmp_path)
    assert all(tier.put(key(number), b"%d" % number * 20) for number in range(3))
    tier.flush()
    (segment,) = Path(tier.store.folder, "segments").iterdir()
    whole = segment.read_bytes().rstrip(b"\0")
    flips = dropped = 0
    with caplog.at_level(logging.WARNING, "penstock"), open(segment, "r+b", buffering=0) as raw:
        for at in range(0, len(whole), 1 if FULL else 3):
            os.pwrite(raw.fileno(), bytes([whole[at] ^ 1 << at % 8]), at)
            found = tier.get_many([key(number) for number in range(3)])
            assert all(got in (None, b"%d" % number * 20) for number, got in enumerate(found))
            flips, dropped = flips + 1, dropped + found.count(None)
            os.pwrite(raw.fileno(), whole[at : at + 1], at)
            for number in range(3):
                if found[number] is None:
                    assert key(number) not in tier, "it is found again and again"
                    tier.put(key(number), b"%d" % number * 20)
            tier.flush()
            assert all(tier.get(key(number)) is not None for number in range(3))
    assert dropped > 0
    assert flips > 100 / (1 if FULL else 3)
    assert len(caplog.records) == 1
    assert "damaged" in caplog.text
    tier.close()


def work(tier: DiskTier, seed: int, times: int = 150) -> None:
    """Put, read and remove; what is found is right."""
    rng = random.Random(seed)
    for _ in range(times):
        number = rng.randrange(80)
        tier.put(key(number), content(number)[:6000])
        if rng.random() < 0.3:
            tier.remove(key(rng.randrange(80)))
        some = rng.sample(range(80), 10)
        for other, got in zip(some, tier.get_many([key(each) for each in some]), strict=True):
            assert got is None or got == content(other)[:6000]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_whatever_call_fails_bytes_are_right_and_nothing_is_raised(tmp_path: Path, number: int) -> None:
    for seed in range(500 if FULL else 6):
        rng = random.Random(seed)
        one_in, only = rng.choice([3, 30, 300]), rng.choice([None, *Failing.CALLS])
        files = Failing(lambda what, _: only in (None, what) and rng.randrange(one_in) == 0, number)  # noqa: B023
        tier = opened(tmp_path / "store", files)
        work(tier, seed, 60)
        tier.close()
        after = opened(tmp_path / "store")
        work(after, seed, 30)
        after.close()
        shutil.rmtree(tmp_path / "store", ignore_errors=True)


def test_jobs_on_one_path_that_are_killed_at_any_moment_read_right_bytes(tmp_path: Path) -> None:
    def job(seed: int) -> None:
        tier = opened(tmp_path, upkeep_s=0.005)
        while True:
            work(tier, seed, 20)

    rng = random.Random(0)
    jobs = [start(lambda seed=seed: job(seed)) for seed in range(2)]  # type: ignore[misc]
    until(lambda: list(tmp_path.glob("*/segments/*")), within_s=20.0, why="nothing is written")
    for seed in range(2, 30 if FULL else 10):
        time.sleep(rng.uniform(0.0, 0.15))
        assert end(jobs.pop(0)) == -9, "it failed"
        jobs.append(start(lambda seed=seed: job(seed)))  # type: ignore[misc]
    assert [end(pid) for pid in jobs] == [-9, -9]
    tier = opened(tmp_path)
    work(tier, 99, 80)
    tier.store.flush()
    assert tier.store.verify().bad == 0
    tier.close()
