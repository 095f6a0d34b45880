"""The store in memory: how what is kept gets there."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from penstock.store import kept_memory
from penstock.store.partial import Entry, Wanted
from tests.unit.test_kept_memory import FORK, store_of, used_before, values_of


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
