"""Messages between the cache's service and its clients: pure encoding.

A client opens a stream, and is welcomed with the descriptor of the memory file and its size. Then it asks (`LOOKUP`, `STATS`), and is answered in order;
`RELEASE` has no answer. Bytes never travel here: answers name places in the memory file.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct, pack, unpack_from

from penstock.cache.keys import KEY_BYTES

MAX_REQUEST = 1 << 20
"""Most bytes of a request. An answer is not longer either, except statistics."""
READ_BYTES = 32 << 10
"""Largest single read of a stream: most messages are of a few hundred bytes."""
WELCOME = Struct("<Iq")
"""Version, size of the memory file."""
VERSION = 1
MISSING = (-1, 0)


class CacheMsg(IntEnum):
    # client -> service
    LOOKUP = 1
    RELEASE = 2
    STATS = 3
    # service -> client
    FOUND = 16
    STATED = 17


class BadRequest(ValueError):
    """What arrived is no message of ours."""


def pack_lookup(released: Sequence[int], keys: Sequence[bytes]) -> bytes:
    """`released`: leases that end with this message."""
    return pack(f"<I{len(released)}q", len(released), *released) + b"".join(keys)


def split_lookup(data: bytes) -> tuple[tuple[int, ...], list[bytes]]:
    if len(data) < 4:
        raise BadRequest("a lookup is cut off")
    (count,) = unpack_from("<I", data)
    first = 4 + 8 * count
    if first > len(data) or (len(data) - first) % KEY_BYTES:  # guard: lookup-length
        raise BadRequest(f"a lookup of {len(data)} bytes has no room for {count} leases and whole keys")
    keys = [data[at : at + KEY_BYTES] for at in range(first, len(data), KEY_BYTES)]
    return unpack_from(f"<{count}q", data, 4), keys


def pack_places(places: Sequence[tuple[int, int] | None]) -> bytes:
    """Pack each place as offset and size; a missing one as -1 and 0."""
    numbers = [number for place in places for number in place or MISSING]
    return pack(f"<{len(numbers)}q", *numbers)


def split_places(data: bytes, count: int, size: int) -> list[tuple[int, int] | None]:
    """Return `count` places, all of them within `size` bytes."""
    if len(data) != 16 * count:
        raise BadRequest(f"{len(data)} bytes are not the places of {count} keys")
    numbers = unpack_from(f"<{2 * count}q", data)
    places = list(zip(numbers[::2], numbers[1::2], strict=True))
    if any(
        place != MISSING and not 0 <= place[0] <= place[0] + place[1] <= size for place in places
    ):  # guard: place-in-file
        raise BadRequest("a place lies outside of the memory file")
    return [None if place == MISSING else place for place in places]
