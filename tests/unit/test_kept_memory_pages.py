"""The store in memory: how what is kept gets there."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import accel
from penstock.reuse.stores import chunks
from penstock.reuse.stores import memory as kept_memory
from penstock.reuse.stores.contract import Entry, Wanted
from tests.unit.test_kept_memory import FORK, store_of, used_before, values_of


def gives_pages() -> bool:
    """Whether this kernel does."""
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        try:
            memory.madvise(kept_memory.MADV_POPULATE_READ)
        except OSError:
            return False
    return accel.compiled() is not None


@pytest.mark.skipif(not gives_pages(), reason="Linux before 5.14, or no compiled loops")
def test_chunks_that_were_used_before_are_written_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process has to ask for their pages itself, and writes by the kernel where it does not get them."""
    store = store_of()
    used_before(store)
    by_kernel, write = list[int](), os.pwritev

    def pwritev(fd: int, parts: list[Any], offset: int) -> int:
        by_kernel.append(offset)
        return write(fd, parts, offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    for sample in (1, 2):
        assert store.put(Wanted(sample, 0), Entry(values_of(Wanted(sample, 0)), b"cat"))
    assert not by_kernel
    assert store._mapped

    def puts() -> None:
        assert store.put(Wanted(3, 0), Entry(values_of(Wanted(3, 0))))
        os._exit(0 if len(store._mapped) == 1 and not by_kernel else 1)

    child = FORK.Process(target=puts)
    child.start()
    child.join()
    assert child.exitcode == 0
    store._mapped.clear()
    monkeypatch.setattr(kept_memory, "MADV_POPULATE_READ", 9999)
    assert store.put(Wanted(4, 0), Entry(values_of(Wanted(4, 0))))
    assert len(by_kernel) == 1
    for sample in (1, 2, 3, 4):
        found = store.get(Wanted(sample, 0))
        assert found is not None
        assert np.array_equal(found.values, values_of(Wanted(sample, 0)))


def test_on_a_disk_which_may_be_full_the_kernel_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def on_disk() -> int:
        return os.open(tmp_path / "store", os.O_RDWR | os.O_CREAT)

    monkeypatch.setattr(chunks, "anonymous_file", on_disk)
    store = store_of()
    used_before(store)
    assert store.put(Wanted(1, 0), Entry(values_of(Wanted(1, 0))))
    assert not store._mapped
    found = store.get(Wanted(1, 0))
    assert found is not None
    assert np.array_equal(found.values, values_of(Wanted(1, 0)))
