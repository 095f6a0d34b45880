"""Descriptions from other machines, damaged in any way: each is refused by its one exception or describes something, and no code is run.

Damage is of two kinds: bytes changed anywhere, which mostly ends in the JSON parser, and parts of the structure replaced by other parts,
which does not.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.remote.values import BadValue, decode, encode
from penstock.wire.layout import describe
from penstock.wire.layout_text import BadLayout, pack, unpack

_ran: list[str] = []
_watched = False
RUNS = (
    "import",
    "exec",
    "compile",
    "open",
    "os.",
    "subprocess.",
    "ctypes.",
    "pickle.",
    "socket.",
    "shutil.",
    "code.",
)


def _audit(event: str, args: Any) -> None:
    if _watched and event.startswith(RUNS):
        _ran.append(f"{event} {args!r}")


sys.addaudithook(_audit)


@contextmanager
def nothing_runs() -> Iterator[None]:
    """Python itself reports what would run code, import, open or start something."""
    global _watched
    _ran.clear()
    _watched = True
    try:
        yield
    finally:
        _watched = False
    assert _ran == []


def test_what_runs_is_seen() -> None:
    try:
        with nothing_runs():
            eval("1")
    except AssertionError:
        return
    raise AssertionError("it was not seen")


SAMPLE: Any = {
    "image": torch.zeros(2, 3, 4),
    ("a", 1): [np.zeros((2, 2), np.float32), 3, 2.5, True, np.float16(1)],
    "text": ("caption", b"bytes"),
}
LAYOUT = pack(describe(SAMPLE))  # type: ignore[arg-type]
SHARED = torch.arange(6.0).view(2, 3).T
VALUE: Any = [
    {"a": SHARED, 1: np.arange(6, dtype=">i4").reshape(2, 3), (None, 2.5): SHARED},
    (np.float32(1.5), 1 << 90, float("nan"), 1j, "\ud800", b"bytes", torch.empty(0, 3), np.asfortranarray(np.ones((2, 2)))),
]  # fmt: skip
SKELETON, BUFFERS = encode(VALUE)
WORDS: list[Any] = [
    "list", "tuple", "dict", "named", "tensor", "array", "scalar", "text", "bytes", "number", "again", "int", "float", "complex",
    "os:system", "subprocess:Popen", "builtins:eval", "urllib.parse:SplitResult", "collections:namedtuple", "this:x", "__main__:x",
    "uint8", "float64", "object", "O", "V8", "load", "<", ">", "|", "=", "", "00" * 8, "\ud800", "__class__",
    -1, 0, 1, 2, 7, 24, 256, 1 << 31, 1 << 40, 1 << 63, 1 << 64, -(1 << 63), 10**400, 1.5, -0.0, 1e300, True, False, None,
    [], {}, [[]], {"__reduce__": "os:system"}, [1, 2, 3], [0], [-1], [1 << 40, 1 << 40, 0],
]  # fmt: skip


def places(said: Any, at: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    yield at
    if type(said) is list:
        for number, part in enumerate(said):
            yield from places(part, (*at, number))


def at_place(said: Any, place: tuple[int, ...]) -> Any:
    for number in place:
        said = said[number]
    return said


def a_word(rng: random.Random) -> Any:
    return json.loads(json.dumps(rng.choice(WORDS)))  # a copy: it may be changed in its place


def rearranged(said: Any, rng: random.Random) -> Any:
    """One to three parts replaced, repeated, moved or left out."""
    said = json.loads(json.dumps(said))
    for _ in range(rng.randint(1, 3)):
        spots = [place for place in places(said) if place]
        if not spots:
            return a_word(rng)
        *path, last = rng.choice(spots)
        part = at_place(said, tuple(path))
        what = rng.randrange(5)
        if what == 0:
            del part[last]
        elif what == 1:
            part.insert(last, a_word(rng))
        elif what == 2:
            part[last] = json.loads(json.dumps(at_place(said, rng.choice(spots))))
        elif what == 3:
            part[last] = [part[last]] * rng.choice([1, 2, 40])
        else:
            part[last] = a_word(rng)
    return said


def with_bytes_changed(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed))
        what = rng.randrange(4)
        if what == 0:
            changed[at] = rng.randrange(256)
        elif what == 1:
            changed[at] = rng.choice(b'0123456789-[]",.eE')
        elif what == 2:
            del changed[at : at + rng.randint(1, 9)]
            changed = changed or bytearray(b"[")
        else:
            changed[at:at] = changed[at : at + rng.randint(1, 30)]
    return bytes(changed)


def damaged(data: bytes, seed: int) -> bytes:
    rng = random.Random(seed)
    if rng.random() < 0.3:
        return with_bytes_changed(data, rng)
    return json.dumps(rearranged(json.loads(data), rng), separators=(",", ":")).encode()


def refused(read: Callable[[], Any], error: type[Exception]) -> bool:
    """Whether it was refused, in a sentence that repeats little of the data."""
    said = ""
    with nothing_runs():
        try:
            read()
        except error as exc:
            said = str(exc)
    assert len(said) < 300
    return said != ""


@given(st.integers(0, 1 << 40))
def test_a_damaged_layout_is_refused_or_is_the_only_text_of_its_layout(seed: int) -> None:
    assert LAYOUT is not None
    data = damaged(LAYOUT, seed)
    if not refused(lambda: unpack(data), BadLayout):
        assert pack(unpack(data)) == data


@given(st.integers(0, 1 << 40))
def test_a_damaged_value_is_refused_or_is_a_value(seed: int) -> None:
    data, rng = damaged(SKELETON, seed), random.Random(seed)
    buffers = list(BUFFERS)
    if rng.random() < 0.2:
        del buffers[rng.randrange(len(buffers))]
    if rng.random() < 0.2:
        rng.shuffle(buffers)
    if not refused(lambda: decode(data, buffers), BadValue):
        encode(decode(data, buffers))


@given(st.binary(max_size=60) | st.text('[]",0123456789truefalsnuldicthp:', max_size=60).map(str.encode))
def test_any_bytes_at_all_are_refused_or_mean_something(data: bytes) -> None:
    refused(lambda: unpack(data), BadLayout)
    refused(lambda: decode(data, []), BadValue)


def test_much_of_the_damage_gets_past_the_parser() -> None:
    """Otherwise the tests above would test `json`."""
    assert LAYOUT is not None
    reasons: set[str] = set()
    for data, read in ((LAYOUT, unpack), (SKELETON, lambda data: decode(data, BUFFERS))):
        for seed in range(1500):
            try:
                read(damaged(data, seed))
            except (BadLayout, BadValue) as exc:
                reasons.add(" ".join(word for word in str(exc).split() if word.isalpha())[:28])
    assert len(reasons) >= 20, reasons
