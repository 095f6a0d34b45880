"""Bytes that the cache has placed for a task: used as told, or read from the dataset's own source."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from penstock.sources.sources import ByteRange
from penstock.wire.arena import anonymous_file
from penstock.wire.places import Landing
from penstock.worker.placed import MemoryFile, PlacedBytes
from tests.memory_source import Memory

WHERE: list[ByteRange] = [("a", 0, 3), ("b", 0, None)]
SOURCE = {"a": b"aaa", "b": b"bbbb"}
CACHED = b"..AAABBBB"


@pytest.fixture
def memory() -> Iterator[MemoryFile]:
    """A memory file of this process."""
    fd = anonymous_file()
    os.write(fd, CACHED)
    yield MemoryFile(os.fstat(fd).st_ino, os.getpid(), fd)
    os.close(fd)


@pytest.fixture
def placed() -> Iterator[PlacedBytes]:
    made = PlacedBytes(Memory(SOURCE))
    yield made
    made.close_files()


def read(placed: PlacedBytes, memory: MemoryFile, landing: Landing) -> list[bytes]:
    placed.place(memory, [landing], lambda _: WHERE)
    return placed.read_many(WHERE)


def test_bytes_are_taken_from_where_they_lie(placed: PlacedBytes, memory: MemoryFile) -> None:
    assert read(placed, memory, Landing(0, 2, (3, 4))) == [b"AAA", b"BBBB"]
    assert placed.read("a", 0, 2) == b"aa", "another range is another place"
    placed.clear()
    assert placed.read_many(WHERE) == [b"aaa", b"bbbb"]


def test_memory_of_another_process_with_the_same_number_is_not_read(
    placed: PlacedBytes, memory: MemoryFile
) -> None:
    assert read(placed, memory._replace(inode=memory.inode + 1), Landing(0, 2, (3, 4))) == [b"aaa", b"bbbb"]


@pytest.mark.parametrize(
    "wrong",
    [Landing(0, 2, (3,)), Landing(0, 2, (3, 40)), Landing(0, 200, (3, 4))],
    ids=["too few lengths", "too long", "beyond the end"],
)
def test_what_does_not_fit_is_read_from_the_source(
    placed: PlacedBytes, memory: MemoryFile, wrong: Landing
) -> None:
    assert read(placed, memory, wrong)[1] == b"bbbb"


def test_a_service_that_is_gone_is_no_error(placed: PlacedBytes, memory: MemoryFile) -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    assert read(placed, memory._replace(pid=pid), Landing(0, 2, (3, 4))) == [b"aaa", b"bbbb"]
