"""The store in memory: entries come back as they were put, chunks are free when all in them is over, and nobody sees what another writes."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan.renewal import Renewal
from penstock.reuse.stores.chunks import SMALLEST_CHUNK, chunk_bytes
from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.memory import HEAD, NUMBERS, MemoryStore, entry_at

FORK = multiprocessing.get_context("fork")


BESIDE = 64 << 10
"""More than rows and counters take."""


def store_of(samples: int = 20, times: int = 3, chunks: int = 8) -> MemoryStore:
    return MemoryStore(Renewal(samples, samples, times, seed=1), chunks * SMALLEST_CHUNK + BESIDE)


def values_of(wanted: Wanted, size: int = 1000) -> np.ndarray:
    return np.random.default_rng([wanted.sample, wanted.renewed]).integers(0, 256, size, dtype=np.uint8)


@given(
    st.lists(
        st.one_of(st.integers(-3, 40), st.sampled_from([2**62, -(2**63), 2**63 - 1, 2**32])),
        min_size=HEAD // 8,
        max_size=HEAD // 8,
    )
)
def test_whatever_a_head_says_while_it_is_written_anew_nothing_beyond_the_entry_is_read(
    numbers: list[int],
) -> None:
    memory, offset, room = np.full(4096, 7, np.uint8), 256, 1024
    memory[offset : offset + HEAD] = memoryview(NUMBERS.pack(*numbers))
    memory[offset + room :] = 99
    values, extra = entry_at(memory, offset, room)
    assert HEAD + values.nbytes + len(extra) <= room
    assert b"c" not in values.tobytes() + extra


@pytest.mark.parametrize("key", [np.uint16(3), np.uint32(3), np.uint64(3), np.int32(3), torch.tensor(3)])
def test_samples_are_known_by_their_number_whatever_its_type(key: Any) -> None:
    """In chunks, too: what ends in the same epoch lies in the same one."""
    for samples in (20, 6000):
        store = store_of(samples)
        plain = store.renewal.ends(3, 0)
        ends = store.renewal.ends(key, 0)
        assert (type(ends), ends) == (int, plain)
        assert store.renewal.of(key, 20_000) == store.renewal.of(3, 20_000)


@pytest.mark.parametrize("fault", ["short", "none"])
def test_what_the_kernel_does_not_write_is_refused(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    store, wanted, write = store_of(), Wanted(3, 0), os.pwritev

    def pwritev(fd: int, parts: list[Any], offset: int) -> int:
        if fault == "none":
            raise OSError(errno.ENOSPC, "no space")
        return write(fd, parts[:1], offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", pwritev)
        assert not store.put(wanted, Entry(values_of(wanted)))
    assert store.get(wanted) is None
    assert store.stats()["refused"] == 1
    assert store.put(wanted, Entry(values_of(wanted)))
    assert store.get(wanted) is not None


def used_before(store: MemoryStore) -> None:
    """Each chunk."""
    store.chunks[:, 0] = 5


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5), (4, 0, 2), (2, 3, 4), (2, 1, 2, 3)])
def test_what_is_put_comes_back(dtype: str, shape: tuple[int, ...], used: bool) -> None:
    store, wanted = store_of(), Wanted(3, 0)
    if used:
        used_before(store)
    values = (np.random.default_rng(1).random(shape) * 9).astype(dtype)
    assert store.put(wanted, Entry(values, b"cat"))
    found = store.get(wanted)
    assert found is not None
    assert found.extra == b"cat"
    assert found.values.dtype == values.dtype
    assert found.values.shape == values.shape
    assert np.array_equal(found.values, values)
    assert not found.values.flags.writeable
    assert store.get(Wanted(3, 1)) is None
    assert store.get(Wanted(4, 0)) is None


def test_values_in_any_order_of_memory_are_kept_as_they_are() -> None:
    store, values = store_of(), np.arange(24, dtype=np.int32).reshape(2, 3, 4).transpose(2, 0, 1)
    store.put(Wanted(0, 0), Entry(values))
    values[:] = 0  # what was put may be changed afterwards
    found = store.get(Wanted(0, 0))
    assert found is not None
    assert np.array_equal(found.values, np.arange(24, dtype=np.int32).reshape(2, 3, 4).transpose(2, 0, 1))


def test_a_later_entry_takes_the_place_of_the_one_before() -> None:
    store = store_of()
    for renewed in (0, 2):
        store.put(Wanted(5, renewed), Entry(values_of(Wanted(5, renewed))))
    assert store.get(Wanted(5, 0)) is None
    assert store.get(Wanted(5, 2)) is not None
    store.remove(5)
    assert store.get(Wanted(5, 2)) is None
    assert store.stats()["entries"] == 0


@pytest.mark.parametrize(
    "values",
    [np.zeros(SMALLEST_CHUNK, np.uint8), np.zeros((1, 1, 1, 1, 1)), np.array(["a"]), np.zeros(3, ">i4")],
)
def test_what_does_not_fit_is_refused(values: Any) -> None:
    store = store_of()
    assert not store.put(Wanted(0, 0), Entry(values))
    assert store.stats()["refused"] == 1


def test_a_full_store_refuses_and_has_room_again_when_entries_have_come_to_their_end() -> None:
    """Four kinds of chunks for two epochs' worth: epochs go by, and memory does not grow."""
    store = store_of(samples=64, times=4, chunks=12)
    size, held = SMALLEST_CHUNK // 8, 0
    for epoch in range(40):
        store.now = epoch
        first, count = store.renewal.stretch(epoch)
        places = np.arange(first, first + count) % store.renewal.kept
        for sample in store.renewal.places(places).tolist():
            assert store.put(Wanted(sample, epoch), Entry(values_of(Wanted(sample, epoch), size - 64)))
        for sample in range(64):
            wanted = Wanted(sample, int(store.renewal.renewed(np.array([sample]), epoch)[0]))
            found = store.get(wanted)
            assert found is not None, (epoch, wanted)
            assert np.array_equal(found.values, values_of(wanted, size - 64))
        held = max(held, store.stats()["held_bytes"])
    assert store.stats()["held_bytes"] == held <= 12 * SMALLEST_CHUNK + (1 << 20)


def test_a_budget_that_is_too_small_refuses_what_is_too_much_and_nothing_else() -> None:
    store = store_of(samples=64, times=1, chunks=2)
    put = [
        store.put(Wanted(at, 0), Entry(values_of(Wanted(at, 0), SMALLEST_CHUNK // 8 - 64)))
        for at in range(64)
    ]
    assert put == [True] * 16 + [False] * 48
    assert all((store.get(Wanted(at, 0)) is not None) is put[at] for at in range(64))


def test_when_time_is_set_back_memory_that_was_claimed_later_is_free() -> None:
    store = store_of(samples=8, times=2, chunks=1)
    later, size = [Wanted(sample, 9) for sample in range(8)], store.chunk_bytes - 64
    for wanted in later:
        assert store.put(wanted, Entry(values_of(wanted, size)))
    for chunk, _ in store._filling.values():
        store._unlock(chunk)
    store._filling.clear()
    store.now = 0
    assert store.put(Wanted(1, 0), Entry(values_of(Wanted(1, 0))))
    assert (
        sum(store.get(wanted) is not None for wanted in later) == 6
    )  # without sample 1, and that whose memory it took


def test_what_is_borrowed_holds_until_its_chunk_is_claimed_again() -> None:
    store = store_of(samples=8, times=1, chunks=1)
    store.put(Wanted(0, 0), Entry(values_of(Wanted(0, 0))))
    borrowed = store.borrow(Wanted(0, 0))
    assert borrowed is not None
    assert borrowed.holds()
    store.now = 1
    assert store.put(Wanted(1, 1), Entry(values_of(Wanted(1, 1))))
    assert not borrowed.holds()
    assert store.get(Wanted(0, 0)) is None


@given(st.integers(0, 4), st.integers(0, 62))
@settings(max_examples=100)
def test_a_torn_row_is_no_row(column: int, bit: int) -> None:
    store = store_of()
    store.put(Wanted(2, 1), Entry(values_of(Wanted(2, 1))))
    store.rows[2, column] ^= 1 << bit
    assert store.get(Wanted(2, 1)) is None


def fill(store: MemoryStore, seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    for _ in range(rounds):
        store.now = rng.randrange(4)
        wanted = Wanted(rng.randrange(20), store.now)
        store.put(wanted, Entry(values_of(wanted, 20_000)))


def check(store: MemoryStore) -> int:
    """Entries that are there; every one must be what was put."""
    there = 0
    for sample in range(20):
        for renewed in range(4):
            found = store.get(Wanted(sample, renewed))
            if found is not None:
                assert np.array_equal(found.values, values_of(Wanted(sample, renewed), 20_000))
                there += 1
    return there


def test_processes_that_write_at_once_and_are_killed_leave_nothing_wrong() -> None:
    """Chunks come to their ends all the time here: without the locks on them, or the generations, this fails."""
    store, rng = store_of(times=1, chunks=3), random.Random(3)
    for _ in range(12):
        writers = [FORK.Process(target=fill, args=(store, rng.random(), 10**6)) for _ in range(3)]
        for writer in writers:
            writer.start()
        end = time.monotonic() + 0.25
        while time.monotonic() < end:
            check(store)
        for writer in writers:
            assert writer.pid is not None
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
        check(store)
    store.now = 9
    for sample in range(20):  # what the killed had claimed is free
        assert store.put(Wanted(sample, 9), Entry(values_of(Wanted(sample, 9), 20_000)))


def test_another_process_that_is_started_anew_sees_the_same() -> None:
    store = store_of()
    store.put(Wanted(1, 0), Entry(values_of(Wanted(1, 0), 20_000)))
    copy: MemoryStore = pickle.loads(pickle.dumps(store))  # as a spawned worker gets it
    assert check(copy) == 1
    copy.put(Wanted(2, 0), Entry(values_of(Wanted(2, 0), 20_000)))
    assert check(store) == 2


def test_other_ranks_find_it_by_its_address_and_nothing_else() -> None:
    store = store_of()
    store.put(Wanted(1, 0), Entry(values_of(Wanted(1, 0), 20_000)))
    other = MemoryStore.of(store.renewal, store.address)
    assert check(other) == 1
    assert other.stats()["found"] == store.stats()["found"] == 1
    with pytest.raises(OSError, match="another file"):
        MemoryStore.of(store.renewal, store.address._replace(sign=3))
    with pytest.raises(OSError):
        MemoryStore.of(store.renewal, store.address._replace(fd=10**6))


def test_a_file_that_is_not_the_store_is_left_as_it_is(tmp_path: Path) -> None:
    """Where processes have numbers of their own, an address may name anything."""
    store, path, open_before = store_of(), tmp_path / "precious", len(os.listdir("/proc/self/fd"))
    path.write_bytes(b"precious" * 1000)
    pipe = os.pipe()
    with path.open("r+b") as file:
        for fd in (file.fileno(), *pipe):
            with pytest.raises(OSError, match="another file"):
                MemoryStore.of(store.renewal, store.address._replace(fd=fd))
            other = MemoryStore.__new__(MemoryStore)  # as a spawned worker does, which goes on without
            other.__setstate__((store.renewal, store.address._replace(fd=fd)))
            assert not other.put(Wanted(0, 0), Entry(values_of(Wanted(0, 0))))
            assert other.get(Wanted(0, 0)) is None
    for end in pipe:
        os.close(end)
    assert path.read_bytes() == b"precious" * 1000
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_whoever_made_the_store_says_how_it_is_laid_out() -> None:
    store = store_of(chunks=20)
    with pytest.raises(OSError, match="other data"):
        MemoryStore.of(Renewal(21, 20, 3, seed=1), store.address)
    other = MemoryStore.of(Renewal(20, 7, 3, seed=1), store.address)
    assert (other.max_bytes, other.chunk_bytes, len(other.chunks)) == (
        store.max_bytes,
        store.chunk_bytes,
        len(store.chunks),
    )


def test_who_is_behind_takes_memory_that_nobody_has_before_that_of_those_ahead() -> None:
    renewal = Renewal(40, 40, 4, seed=1)
    store, size = MemoryStore(renewal, 16 * SMALLEST_CHUNK + BESIDE), SMALLEST_CHUNK // 2 - 64
    ahead = [Wanted(sample, 5) for sample in range(10)]
    for now, first in ((5, 0), (4, 10)):
        writer = FORK.Process(target=put_all, args=(store, now, range(first, first + 10), size))
        writer.start()
        writer.join()
        assert writer.exitcode == 0
    assert all(store.get(wanted) is not None for wanted in ahead)
    store.now = 3  # and when there is none, it takes it from them
    assert all(
        store.put(Wanted(sample, 3), Entry(values_of(Wanted(sample, 3), size))) for sample in range(20, 40)
    )
    assert not all(store.get(wanted) is not None for wanted in ahead)


def put_all(store: MemoryStore, now: int, samples: range, size: int) -> None:
    store.now = now
    for sample in samples:
        assert store.put(Wanted(sample, now), Entry(values_of(Wanted(sample, now), size)))


def test_memory_is_taken_as_it_is_needed() -> None:
    store = store_of(chunks=64)
    assert store.stats()["held_bytes"] < SMALLEST_CHUNK
    store.put(Wanted(0, 0), Entry(values_of(Wanted(0, 0))))
    stats = store.stats()
    assert (stats["entries"], stats["max_bytes"]) == (1, 64 * SMALLEST_CHUNK + BESIDE)
    assert SMALLEST_CHUNK < stats["held_bytes"] < 2 * SMALLEST_CHUNK
    assert os.fstat(store._fd).st_blocks * 512 < 2 * SMALLEST_CHUNK


@pytest.mark.parametrize("max_bytes", [0, 1 << 10, 1 << 17, 1 << 20, 5 << 20, 1 << 30])
def test_no_budget_is_exceeded(max_bytes: int) -> None:
    """Rows and counters included; where there is no room even for those, nothing is kept."""
    store = MemoryStore(Renewal(300, 300, 3, seed=1), max_bytes)
    for sample in range(300):
        store.put(Wanted(sample, 0), Entry(values_of(Wanted(sample, 0), 5000)))
    stats = store.stats()
    assert stats["entries"] + stats["refused"] == 300
    assert stats["held_bytes"] <= max(max_bytes, 64 << 10)
    assert os.fstat(store._fd).st_blocks * 512 <= max(max_bytes, 64 << 10)
    assert stats["entries"] >= min(300, max(0, max_bytes - (64 << 10)) // 12_000)


def test_no_index_is_made_where_it_leaves_no_room() -> None:
    store = MemoryStore(Renewal(1_000_000, 1000, 3, seed=1), 1 << 20)
    assert os.fstat(store._fd).st_blocks * 512 == store.stats()["held_bytes"] <= 64 << 10
    assert not store.put(Wanted(3, 0), Entry(values_of(Wanted(3, 0))))
    assert store.get(Wanted(3, 0)) is None
    assert len(MemoryStore.of(store.renewal, store.address).rows) == 0


@pytest.mark.parametrize(
    ("max_bytes", "entry"),
    [(8 << 30, 9_000_064), (1 << 30, 2_250_064), (16 << 20, 1_100_000), (1 << 20, 120_064)],
)
def test_chunks_hold_several_entries_of_the_size_that_is_expected(max_bytes: int, entry: int) -> None:
    size = chunk_bytes(max_bytes, entry)
    assert size // entry == min(4, max_bytes // 8 // entry)
    assert size % entry < entry // 4
    assert chunk_bytes(max_bytes, 3000) == chunk_bytes(max_bytes)


def test_where_many_are_too_large_it_is_said_once_by_whichever_process(
    capfd: pytest.CaptureFixture[str],
) -> None:
    store = store_of()
    for _ in range(3):
        writer = FORK.Process(target=put_too_large, args=(store,))
        writer.start()
        writer.join()
        assert writer.exitcode == 0
    said = capfd.readouterr().err
    assert said.count("samples so far were not kept, since they are larger than 1,048,576 bytes") == 1
    assert store.stats()["refused"] == 30


def put_too_large(store: MemoryStore) -> None:
    logging.getLogger("penstock").addHandler(logging.StreamHandler(sys.__stderr__))
    for sample in range(10):
        store.put(Wanted(sample, 0), Entry(np.zeros(SMALLEST_CHUNK, np.uint8)))


def in_little_space(spare: int, files: int) -> None:
    """A store where a process may have so many bytes, and so many files, more."""
    entry = Entry(values_of(Wanted(1, 0)))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    space = pages * os.sysconf("SC_PAGE_SIZE") + spare
    resource.setrlimit(resource.RLIMIT_AS, (space, resource.RLIM_INFINITY))
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used - 1 + files, 1 << 10))
    store = MemoryStore(Renewal(20, 20, 3, seed=1), 8 << 30)
    stats = store.stats()
    put = store.put(Wanted(1, 0), entry)
    copy: MemoryStore = pickle.loads(pickle.dumps(store))
    seen = copy.get(Wanted(1, 0)) is not None
    resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 10, 1 << 10))
    store.close()
    copy.close()
    left = len(os.listdir("/proc/self/fd")) - used
    print(json.dumps([stats["max_bytes"], put, seen, left]), flush=True)


@pytest.mark.parametrize(
    ("spare", "files", "least", "most"),
    [
        (5 << 30, 100, 1 << 30, 2 << 30),
        (16 << 30, 0, 0, 0),
        (17 << 30, 100, 8 << 30, 8 << 30),
    ],
)
def test_without_memory_or_files_less_is_kept_or_nothing_with_one_warning(
    spare: int, files: int, least: int, most: int
) -> None:
    code = f"from tests.unit.test_kept_memory import in_little_space; in_little_space({spare}, {files})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    max_bytes, put, seen, left = json.loads(done.stdout)
    assert least <= max_bytes <= most
    assert (put, left) == (most > 0, 0)
    assert seen == put  # there is as much space left
    assert done.stderr.count("there is no memory for max_bytes, 8,589,934,592") == (most < 8 << 30)


def test_small_entries_lie_close_together() -> None:
    store = store_of(samples=200, times=1)
    for sample in range(200):
        assert store.put(Wanted(sample, 0), Entry(values_of(Wanted(sample, 0), 3072)))
    assert store.stats()["bytes"] == 200 * (3072 + 64)


def test_what_is_borrowed_does_not_hold_when_the_store_was_closed() -> None:
    store = store_of()
    store.put(Wanted(0, 0), Entry(values_of(Wanted(0, 0))))
    copy: MemoryStore = pickle.loads(pickle.dumps(store))
    borrowed = store.borrow(Wanted(0, 0))
    assert borrowed is not None
    store.close()
    assert not borrowed.holds()
    assert np.array_equal(borrowed.entry.values, values_of(Wanted(0, 0)))  # it is there all the same
    assert copy.get(Wanted(0, 0)) is not None  # and for others
