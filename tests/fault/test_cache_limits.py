"""The cache in a container or under a limit that is smaller than it: one warning, less memory, and nobody is killed for it."""

from __future__ import annotations

import json
import logging
import mmap
import os
import resource
from collections.abc import Callable
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

from penstock.cache.memory import MemoryTier
from penstock.sources.sources import WholeFiles
from penstock.wire.places import Landing
from penstock.worker.placed import MemoryFile, PlacedBytes
from tests.cache_service import content, key, put
from tests.fault.confinement import deny, memory_cgroup
from tests.forks import start


def told(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What work in a forked process returns, with the warnings that it gave."""
    read, write = os.pipe()

    def child() -> None:
        handler = BufferingHandler(1000)
        logging.getLogger("penstock").addHandler(handler)
        found = work()
        said = [record.getMessage() for record in handler.buffer]
        os.write(write, json.dumps({**found, "said": said}).encode())

    pid = start(child)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    found: dict[str, Any] = json.loads(text)
    return found


def filled() -> dict[str, Any]:
    """A tier that asks for far more than there is, written until it is full."""
    tier = MemoryTier(1 << 30)
    count = 0
    while put(tier, count):
        count += 1
    with tier.reading(key(0)) as view:
        return {"count": count, "right": view == content(0), **tier.stats()}


def limit_addresses(more_bytes: int) -> None:
    """As `ulimit -v` does."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def test_a_cache_takes_four_fifths_of_what_its_container_has_left() -> None:
    with memory_cgroup(64 << 20) as cgroup:

        def work() -> dict[str, Any]:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))
            return filled()

        found = told(work)
    assert (16 << 20) < found["max_bytes"] <= 0.8 * (64 << 20)
    assert found["held_bytes"] == found["max_bytes"]
    assert found["right"]
    assert len(found["said"]) == 1
    assert (
        f"memory=1,073,741,824 bytes is more than this machine or container can spare: {found['max_bytes']:,} are used"
        in found["said"][0]
    )


def test_a_cache_takes_less_where_addresses_are_limited() -> None:
    def work() -> dict[str, Any]:
        limit_addresses(80 << 20)
        return filled()

    found = told(work)
    assert (8 << 20) <= found["max_bytes"] <= 64 << 20
    assert found["right"]
    assert len(found["said"]) == 1


def test_a_reader_needs_no_room_for_a_map() -> None:
    tier = MemoryTier(256 << 20)
    assert put(tier, 0)
    (place,) = tier.lookup([key(0)], "reader")
    assert place is not None
    fd = tier.open_for_reading()
    memory = MemoryFile(os.fstat(fd).st_ino, os.getpid(), fd)

    def work() -> dict[str, Any]:
        limit_addresses(64 << 20)
        placed = PlacedBytes(WholeFiles())
        placed.place(
            memory, [Landing(0, place.offset, (place.size,))], lambda _: [("it is nowhere else", 0, None)]
        )
        return {"right": placed.read("it is nowhere else") == content(0)}

    found = told(work)
    os.close(fd)
    tier.close()
    assert found["right"]
    assert found["said"] == []


def test_where_memfd_is_denied_readers_still_cannot_write() -> None:
    def work() -> dict[str, Any]:
        deny("memfd_create")
        tier = MemoryTier(1 << 22)
        assert put(tier, 0)
        fd = tier.open_for_reading()
        try:
            mmap.mmap(fd, tier.max_bytes)
        except PermissionError:
            with tier.reading(key(0)) as view:
                return {"right": view == content(0)}
        return {"right": False}

    found = told(work)
    assert found["right"]
    assert len(found["said"]) == 1
    assert "memfd_create is denied" in found["said"][0]
