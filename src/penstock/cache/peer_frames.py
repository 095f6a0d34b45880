"""What caches of two machines say to each other after the greeting (`remote.handshake`).

    asker                              home
      HELLO: its number, home's   ─▶
      ASK: scope, step, samples   ─▶
                                 ◀─    ANSWERS: some, in any order; then the bytes of their samples, one behind the other
                                         SAMPLE: key, crc32, length
                                         REFUSED: key
                                         ALIVE, twice a second while it owes others
      GOT: so many samples        ─▶   their memory may be used again

Rule 1: nothing is unpickled, and nothing is allocated before its length was checked.
Rule 2: each message, either way, has a checksum of its own: a damaged one cannot name another sample. The connection ends with the first damage.
Rule 3: a home answers each sample that it was asked for once.
Rule 4: heads of answers travel together: a call that moves a few bytes costs as much as copying thousands.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from penstock.cache.keys import KEY_BYTES, SCOPE_BYTES
from penstock.sources.sources import ByteRange

VERSION = 2
MAX_REQUEST = 1 << 20
MOST_SAMPLES, MOST_RANGES = 1024, 256
"""Of a request; of a sample."""
MAX_SAMPLE = 1 << 34
"""Bytes of one sample."""
MAX_NODE = 1 << 20
MAX_STEP = MAX_INDEX = 1 << 63

HEAD = Struct("<BxxxII")
"""Of each message: kind, length of the payload (with GOT: samples), their checksum; then the payload."""
HELLO = Struct("<III")
"""version, number of the asker, number of the home"""
ANSWER = Struct("<BxH16sIQ")
"""kind, number of ranges, key, crc32 of the bytes, their length. Unless there is one range, its bytes begin with the lengths of all, and `CHECK`."""
CHECK = Struct("<I")
ANSWER_BYTES = HEAD.size + ANSWER.size
"""Of a message with one answer."""
MOST_ANSWERS = 256
"""Of a message."""
NO_KEY = bytes(KEY_BYTES)

MOST_HOLDS = 8192
"""Samples held, and dropped, of one announcement."""

AskedSample = tuple[int, Sequence[ByteRange]]


class PeerMsg(IntEnum):
    # asker -> home
    HELLO = 1
    ASK = 2
    GOT = 3
    HOLDS = 4
    # home -> asker
    ANSWERS = 16
    # each of these
    SAMPLE = 17
    REFUSED = 18
    ALIVE = 19


class BadPeerFrame(ConnectionError):
    """What arrived is damaged, or no message of ours. The connection cannot go on."""


class PeerAnswer(NamedTuple):
    kind: int
    ranges: int
    key: bytes
    check: int
    nbytes: int


def split_key(key: bytes) -> tuple[bytes, int]:
    """Return the scope and the number of a sample."""
    return key[:SCOPE_BYTES], int.from_bytes(key[SCOPE_BYTES:], "little")


# ---- asker -> home


def pack_message(kind: PeerMsg, size: int, payload: bytes = b"") -> bytes:
    bare = HEAD.pack(kind, size, 0)
    return HEAD.pack(kind, size, zlib.crc32(payload, zlib.crc32(bare))) + payload


def payload_bytes(head: bytes | bytearray) -> int:
    """Return the length of what follows an asker's head, checked."""
    kind, size, _ = HEAD.unpack(head)
    if kind == PeerMsg.GOT:
        return 0
    limit = {PeerMsg.HELLO: HELLO.size, PeerMsg.ASK: MAX_REQUEST, PeerMsg.HOLDS: MAX_REQUEST}.get(kind, -1)
    if size > limit:  # guard: peer-request-size
        raise BadPeerFrame(f"a message of kind {kind} and {size:,} bytes")
    return int(size)


def split_message(head: bytes | bytearray, payload: bytes) -> tuple[int, int]:
    """Return kind and size of a message that arrived whole."""
    kind, size, check = HEAD.unpack(head)
    if zlib.crc32(payload, zlib.crc32(HEAD.pack(kind, size, 0))) != check:  # guard: peer-request-checksum
        raise BadPeerFrame("a damaged message")
    return kind, size


def pack_requests(
    scope: bytes, step: int, wanted: Sequence[AskedSample]
) -> tuple[list[bytes], list[AskedSample]]:
    """Return the messages that ask for these samples, and samples that no message can ask for."""
    frames: list[bytes] = []
    too_long: list[AskedSample] = []
    parts = [wanted[at : at + MOST_SAMPLES] for at in range(0, len(wanted), MOST_SAMPLES)][::-1]
    while parts:
        part = parts.pop()
        payload = _encode([scope.hex(), step, part]).encode()
        if len(payload) <= MAX_REQUEST and max([len(ranges) for _, ranges in part]) <= MOST_RANGES:
            frames.append(pack_message(PeerMsg.ASK, len(payload), payload))
        elif len(part) == 1:
            too_long += part
        else:
            parts += [part[len(part) // 2 :], part[: len(part) // 2]]
    return frames, too_long


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
"""Does not look for a list that contains itself: there is none, and to look takes a fifth of the time."""


def split_request(payload: bytes) -> tuple[bytes, int, list[tuple[int, list[ByteRange]]]]:
    """Return scope, step and samples with their ranges. BadPeerFrame for anything else."""
    try:
        scope, step, wanted = json.loads(payload)
        named = bytes.fromhex(scope)
        found = [(sample, [_range(*one) for one in ranges]) for sample, ranges in wanted]
    except (TypeError, ValueError, RecursionError) as exc:
        raise BadPeerFrame("a request that cannot be read") from exc
    if (
        len(named) != SCOPE_BYTES
        or not _is_number(step, MAX_STEP)
        or len(found) > MOST_SAMPLES
        or not all(_is_number(sample, MAX_INDEX) and len(ranges) <= MOST_RANGES for sample, ranges in found)
    ):  # guard: peer-request-fields
        raise BadPeerFrame("a request for what cannot be")
    return named, step, found


def pack_holds(scope: bytes, holds: Sequence[int], drops: Sequence[int], *, anew: bool) -> list[bytes]:
    """Return messages that say what this machine holds from now on, and what no more; `anew`: and nothing else."""
    frames = []
    for at in range(0, max(len(holds), len(drops), 1), MOST_HOLDS):
        said = [scope.hex(), holds[at : at + MOST_HOLDS], drops[at : at + MOST_HOLDS], anew and not at]
        payload = _encode(said).encode()
        frames.append(pack_message(PeerMsg.HOLDS, len(payload), payload))
    return frames


def split_holds(payload: bytes) -> tuple[bytes, list[int], list[int], bool]:
    """Return scope, samples held, samples dropped, and whether nothing else is held. BadPeerFrame for anything else."""
    try:
        scope, holds, drops, anew = json.loads(payload)
        named = bytes.fromhex(scope)
        numbers = [*holds, *drops]
    except (TypeError, ValueError, RecursionError) as exc:
        raise BadPeerFrame("an announcement that cannot be read") from exc
    if len(named) != SCOPE_BYTES or not all(_is_number(sample, MAX_INDEX) for sample in numbers):
        raise BadPeerFrame("an announcement of what cannot be")
    return named, list(holds), list(drops), bool(anew)


def _range(name: object, start: object, end: object) -> ByteRange:
    if type(name) is not str or type(start) is not int or not 0 <= start < MAX_INDEX:
        raise ValueError("no name or start")
    if end is not None and (type(end) is not int or not start <= end < MAX_INDEX):
        raise ValueError("no end")
    return name, start, end


def _is_number(value: object, limit: int) -> bool:
    return type(value) is int and 0 <= value < limit


# ---- home -> asker


def pack_answer(kind: PeerMsg, key: bytes = NO_KEY, check: int = 0, lengths: Sequence[int] = ()) -> bytes:
    """Return an answer's head, for `pack_answers`."""
    nbytes = lengths[0] if len(lengths) == 1 else sum(lengths)
    return ANSWER.pack(kind, len(lengths), key, check, nbytes)


def pack_answers(heads: Sequence[bytes]) -> bytes:
    """Return the message that stands before the bytes of these answers: `MOST_ANSWERS` at most."""
    return pack_message(PeerMsg.ANSWERS, len(heads) * ANSWER.size, b"".join(heads))


def pack_lengths(lengths: Sequence[int]) -> bytes:
    """Return what stands before a sample's bytes: nothing if it has one range, whose length is in the head."""
    if len(lengths) == 1:
        return b""
    more = Struct(f"<{len(lengths)}Q").pack(*lengths)
    return more + CHECK.pack(zlib.crc32(more))


def answers_bytes(head: bytes | bytearray) -> int:
    """Return the length of what follows a home's head, checked."""
    kind, size, _ = HEAD.unpack(head)
    if kind != PeerMsg.ANSWERS or size % ANSWER.size or not 0 < size <= MOST_ANSWERS * ANSWER.size:
        raise BadPeerFrame(f"it sent a message of kind {kind} and {size:,} bytes")
    return int(size)


def split_answers(head: bytes | bytearray, payload: bytes | memoryview) -> list[PeerAnswer]:
    """Return the answers of a message that arrived whole."""
    kind, size, check = HEAD.unpack(head)
    if zlib.crc32(payload, zlib.crc32(HEAD.pack(kind, size, 0))) != check:  # guard: peer-answer-checksum
        raise BadPeerFrame("a damaged answer")
    answers = list(map(PeerAnswer._make, ANSWER.iter_unpack(payload)))
    for _, ranges, _, _, nbytes in answers:
        if nbytes > MAX_SAMPLE or ranges > MOST_RANGES:  # guard: peer-answer-size
            raise BadPeerFrame(f"an answer of {nbytes:,} bytes in {ranges} ranges")
    return answers


def lengths_bytes(answer: PeerAnswer) -> int:
    """Return the length of what stands before a sample's bytes."""
    return 0 if answer.ranges == 1 else 8 * answer.ranges + CHECK.size


def split_lengths(answer: PeerAnswer, data: bytes | bytearray) -> tuple[int, ...]:
    """Return the length of each range."""
    if answer.ranges == 1:
        return (answer.nbytes,)
    lengths = Struct(f"<{answer.ranges}Q").unpack_from(data)
    if zlib.crc32(data[: -CHECK.size]) != CHECK.unpack_from(data, 8 * answer.ranges)[0]:
        raise BadPeerFrame("damaged lengths")
    if sum(lengths) != answer.nbytes:
        raise BadPeerFrame("lengths that are not those of the bytes")
    return lengths


def fits(lengths: Sequence[int], ranges: Sequence[ByteRange]) -> bool:
    """Whether ranges can have these lengths."""
    if len(lengths) == len(ranges) == 1:  # without a loop: each sample passes here
        _, start, end = ranges[0]
        return end is None or lengths[0] == end - start
    return len(lengths) == len(ranges) and all(
        end is None or length == end - start for length, (_, start, end) in zip(lengths, ranges, strict=True)
    )
