"""Processes that share the store on disk and are killed at any moment: right bytes always, and what was written out stays."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk import DiskStore
from tests.forks import start

FULL = os.environ.get("PENSTOCK_FULL") == "1"
NAMESPACE = "abcdefabcdefabcd"
SAMPLES = 120
ACK = struct.Struct("<qq")


def opened(path: Path, upkeep_s: float = 0.005) -> DiskStore:
    return DiskStore(
        path, NAMESPACE, SAMPLES, 1 << 21, small_bytes=4096, segment_bytes=1 << 15, upkeep_s=upkeep_s
    )


def is_large(sample: int) -> bool:
    return sample % 20 == 19


def entry(wanted: Wanted) -> Entry:
    rng = np.random.default_rng(wanted)
    size = 5000 if is_large(wanted.sample) else int(rng.integers(10, 2500))
    return Entry(rng.integers(0, 256, size, np.uint8), b"%d at %d" % wanted)


def is_right(got: Entry, wanted: Wanted) -> bool:
    right = entry(wanted)
    return got.values.tobytes() == right.values.tobytes() and got.extra == right.extra


def end(pid: int, *, kill: bool) -> None:
    if kill:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in ((0, -signal.SIGKILL) if kill else (0,))


def renew_for_ever(path: Path, first_epoch: int, pipe: int, *, compacting: bool) -> None:
    """Put entries, and tell which of them others can see."""
    store = opened(path, 0 if compacting else 0.005)
    rng = random.Random(first_epoch)
    for epoch in range(first_epoch, first_epoch + 1000):
        put = [Wanted(sample, epoch) for sample in rng.sample(range(SAMPLES), 20)]
        for wanted in put:
            assert store.put(wanted, entry(wanted))
        store.flush()
        os.write(pipe, b"".join(ACK.pack(*wanted) for wanted in put))
        if compacting:
            store.compact()


@pytest.mark.parametrize("compacting", [True, False], ids=["compacting", "in the background"])
def test_a_kill_during_compaction_costs_no_more_than_the_large_entry_that_was_being_replaced(
    tmp_path: Path, compacting: bool
) -> None:
    rng, seen, checked = random.Random(1), dict[int, int](), 0
    for turn in range(2000 if FULL else 40):
        reader, writer = os.pipe()
        pid = start(lambda: renew_for_ever(tmp_path, turn * 1000, writer, compacting=compacting))  # noqa: B023
        os.close(writer)
        said = os.read(reader, ACK.size * 20)  # it has begun
        time.sleep(rng.random() * 0.03)
        end(pid, kill=True)
        while more := os.read(reader, 1 << 16):
            said += more
        os.close(reader)
        for sample, epoch in ACK.iter_unpack(said[: len(said) // ACK.size * ACK.size]):
            seen[sample] = epoch
        store, lost = opened(tmp_path, 0), False
        for sample, epoch in [*seen.items()]:
            # The turn that was killed may have put one more than it could tell.
            found = [
                Wanted(sample, at) for at in (epoch, *range(max(epoch + 1, turn * 1000), turn * 1000 + 300))
            ]
            got = next(((e, w) for e, w in zip(store.get_many(found[:1]), found, strict=False) if e), None)
            got = got or next(((e, w) for e, w in zip(store.get_many(found), found, strict=True) if e), None)
            if got is None and is_large(sample) and not lost:  # it was being written over
                lost = seen.pop(sample) is not None
                continue
            assert got is not None, (turn, sample, epoch)
            assert is_right(*got)
            seen[sample] = got[1].renewed
            checked += 1
        assert store.verify().lost == 0
        store.close()
    assert checked > 40 * SAMPLES / 2
    store = opened(tmp_path, 0)
    store.compact()
    assert store.stats()["held_bytes"] < 3 * store.stats()["bytes"] + (1 << 17)
    store.close()


def job(path: Path, seed: int, until_s: float, pipe: int) -> None:
    store, rng = opened(path), random.Random(seed)
    while time.monotonic() < until_s:
        epoch = int(time.monotonic() * 5)  # roughly the same for all jobs
        wanted = [Wanted(sample, epoch - rng.randrange(2)) for sample in rng.choices(range(SAMPLES), k=16)]
        for want, got in zip(wanted, store.get_many(wanted), strict=True):
            if got is None:
                store.put(want, entry(want))
            elif not is_right(got, want):
                raise AssertionError(want)
        if rng.random() < 0.02:
            store.remove(rng.randrange(SAMPLES))
    os.write(pipe, struct.pack("<q", store.stats()["found"]))
    store.close()


def test_four_jobs_with_random_kills_share_one_store(tmp_path: Path) -> None:
    rng, number, kills = random.Random(2), 0, 0
    reader, writer = os.pipe()
    until_s = time.monotonic() + (7200 if FULL else 8)
    jobs: list[int] = []
    while time.monotonic() < until_s:
        while len(jobs) < 4:
            number += 1
            jobs.append(start(lambda: job(tmp_path, number, until_s, writer)))  # noqa: B023
        time.sleep(0.05 + 0.2 * rng.random())
        kills += 1
        end(jobs.pop(rng.randrange(4)), kill=True)
    for pid in jobs:
        end(pid, kill=False)
    os.close(writer)
    assert sum(hits for (hits,) in struct.iter_unpack("<q", os.read(reader, 64))) > 100
    os.close(reader)
    assert kills > 15
    store = opened(tmp_path, 0)
    store.compact()
    verified = store.verify()
    assert verified.lost == 0
    assert verified.good > SAMPLES / 3
    assert store.stats()["held_bytes"] <= store.stats()["max_bytes"]
    assert not list(tmp_path.rglob("*.tmp"))
    store.close()


def test_a_forked_child_has_a_store_of_its_own(tmp_path: Path) -> None:
    store = opened(tmp_path)
    mine, theirs = Wanted(1, 0), Wanted(2, 0)
    assert store.put(mine, entry(mine))
    segments = tmp_path / NAMESPACE / "segments"
    (before,) = os.listdir(segments)

    def work() -> None:
        assert store.get(mine) is None or is_right(entry(mine), mine)
        assert store.put(theirs, entry(theirs))
        assert len(os.listdir(segments)) == 2
        store.close()

    end(start(work), kill=False)
    assert store.put(Wanted(3, 0), entry(Wanted(3, 0)))
    for wanted in (mine, theirs, Wanted(3, 0)):
        got = store.get(wanted)
        assert got is not None
        assert is_right(got, wanted)
    assert before in os.listdir(segments)
    store.close()


def test_a_child_that_never_used_the_store_does_not_keep_the_locks_of_its_parent(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.put(Wanted(1, 0), entry(Wanted(1, 0)))
    reader, writer = os.pipe()

    def work() -> None:
        os.write(writer, b"x")
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()

    pid = start(work)
    assert os.read(reader, 1) == b"x"
    store.close()
    other = opened(tmp_path, 0)
    other.remove(1)
    other.compact()
    assert os.listdir(tmp_path / NAMESPACE / "segments") == []  # nobody holds it
    other.close()
    end(pid, kill=True)
    os.close(reader)
    os.close(writer)


def test_a_store_is_sent_as_its_arguments(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.put(Wanted(1, 0), entry(Wanted(1, 0)))
    store.flush()
    other = pickle.loads(pickle.dumps(store))
    got = other.get(Wanted(1, 0))
    assert got is not None
    assert is_right(got, Wanted(1, 0))
    other.close()
    store.close()


def test_others_see_an_entry_after_a_while(tmp_path: Path) -> None:
    store, other = opened(tmp_path), opened(tmp_path)
    assert store.put(Wanted(1, 0), entry(Wanted(1, 0)))
    until_s = time.monotonic() + 10
    while other.get(Wanted(1, 0)) is None:
        assert time.monotonic() < until_s
        time.sleep(0.005)
    store.close()
    other.close()
