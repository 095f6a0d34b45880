"""What the cache service and its reading processes say to each other, over a socket pair: pure encoding. Both are ours, and of one machine.

The service begins (`BEGIN`, answered by `READY`) and hands out jobs (`JOBS`). For each sample the process asks for memory (`PLACE`, answered by `PLACED`),
writes the bytes there, and says so (`WRITTEN`); or it says why there are none (`FAILED`). `BEAT` shows that it is there, with its statistics.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

from penstock.cache.read_jobs import NoRoom, ReadJob

PLACE = Struct("<qq")
"""sample, bytes; or sample, offset (NOWHERE: there is no room)"""
WRITTEN = Struct("<qI")
"""sample, crc32 of its bytes (0 if none was wanted); then the length of each range"""
FAILED = Struct("<q?")
"""sample, whether there was no room; then the error's text"""
NOWHERE = -1


class ReadMsg(IntEnum):
    # service -> process
    BEGIN = 1
    JOBS = 2
    PLACED = 3
    # process -> service
    READY = 16
    PLACE = 17
    WRITTEN = 18
    FAILED = 19
    BEAT = 20


class ReadFailed(Exception):
    """A reading process could not read a sample, or has ended: whoever needs it reads it."""


class WrittenSample(NamedTuple):
    sample: int
    check: int
    lengths: tuple[int, ...]


def pack_jobs(jobs: Iterable[ReadJob]) -> bytes:
    return json.dumps(
        [[job.step, job.rank, job.samples] for job in jobs], check_circular=False, separators=(",", ":")
    ).encode()


def split_jobs(payload: bytes) -> list[ReadJob]:
    return [
        ReadJob(step, rank, tuple((sample, tuple(map(as_range, ranges))) for sample, ranges in samples))
        for step, rank, samples in json.loads(payload)
    ]


def as_range(said: list[Any]) -> tuple[str, int, int | None]:
    name, start, end = said
    return name, start, end


def pack_written(sample: int, check: int, lengths: tuple[int, ...]) -> bytes:
    return WRITTEN.pack(sample, check) + array("q", lengths).tobytes()


def split_written(payload: bytes) -> WrittenSample:
    sample, check = WRITTEN.unpack_from(payload)
    lengths = array("q")
    lengths.frombytes(payload[WRITTEN.size :])
    return WrittenSample(sample, check, tuple(lengths))


def pack_failed(sample: int, error: Exception) -> bytes:
    return FAILED.pack(sample, isinstance(error, NoRoom)) + f"{type(error).__name__}: {error}".encode(
        errors="backslashreplace"
    )


def split_failed(payload: bytes) -> tuple[int, Exception]:
    sample, no_room = FAILED.unpack_from(payload)
    said = payload[FAILED.size :].decode(errors="replace")
    return sample, NoRoom() if no_room else ReadFailed(said)
