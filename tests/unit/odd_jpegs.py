"""Valid JPEG files that no encoder would make: Huffman tables at random, with codes of up to 16 bits for what is frequent and some that nothing
has, and coefficients of any size, which tables of a decoder hold in part, or not at all."""

from __future__ import annotations

import random
import struct
from typing import NamedTuple

LONGEST = 16
LEVELS = list(range(12))
RUNS = [run << 4 | size for run in range(16) for size in range(1, 11)] + [0x00, 0xF0]
Codes = dict[int, tuple[int, int]]
"""The code of each symbol, and its length."""


class Table(NamedTuple):
    said: bytes
    codes: Codes


class Bits:
    def __init__(self) -> None:
        self._parts: list[str] = []

    def put(self, value: int, length: int) -> None:
        if length:
            self._parts.append(format(value, f"0{length}b"))

    def put_value(self, value: int) -> None:
        """As JPEG writes numbers: those below 0 less one."""
        size = value.bit_length()
        self.put(value if value > 0 else value + (1 << size) - 1, size)

    def ended(self) -> bytes:
        """All of it, as in a scan."""
        text = "".join(self._parts)
        self._parts = []
        text += "1" * (-len(text) % 8)
        return int(text or "0", 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\x00")


def lengths(rng: random.Random, count: int) -> list[int]:
    """Of codes, such that there is room for all of them and for the one that is all ones."""
    found = {
        "any": lambda: [rng.randint(1, LONGEST) for _ in range(count)],
        "middling": lambda: [min(LONGEST, max(1, int(rng.gauss(9, 2)))) for _ in range(count)],
        "one of each": lambda: [min(LONGEST, at + 1) if at < 12 else LONGEST for at in range(count)],
        "about ten": lambda: [rng.choice([2, 3, 4, 5, 9, 10, 11, 12]) for _ in range(count)],
        "alike": lambda: [8] * count,
    }[rng.choice(["any", "middling", "one of each", "about ten", "alike"])]()
    while sum(2 ** (LONGEST - length) for length in found) >= 2**LONGEST:
        at = rng.randrange(count)
        found[at] = min(LONGEST, found[at] + 1)
    return sorted(found)


def table(rng: random.Random, symbols: list[int]) -> Table:
    symbols = rng.sample(symbols, len(symbols)) if rng.random() < 0.5 else symbols
    sizes, code, codes = lengths(rng, len(symbols)), 0, Codes()
    for at, (symbol, size) in enumerate(zip(symbols, sizes, strict=True)):
        if at:
            code = (code + 1) << (size - sizes[at - 1])
        codes[symbol] = code, size
    return Table(bytes(sizes.count(size) for size in range(1, LONGEST + 1)) + bytes(symbols), codes)


def coefficients(rng: random.Random, most: int, density: float) -> list[int]:
    """The 63 of a block behind its level: near to each other, far, or up to the very last."""
    found = [rng.randint(-most, most) if rng.random() < density else 0 for _ in range(63)]
    if rng.random() < 0.2:
        gap = rng.randrange(10, 40)
        found[:gap] = [0] * gap
    if rng.random() < 0.2:
        found[62] = rng.choice([1, -1, most, -most])
    return found


def put_block(bits: Bits, levels: Codes, runs: Codes, step: int, rest: list[int]) -> None:
    bits.put(*levels[step.bit_length()])
    bits.put_value(step)
    before = -1
    for at in [at for at in range(63) if rest[at]]:
        run, before = at - before - 1, at
        for _ in range(run // 16):
            bits.put(*runs[0xF0])
        bits.put(*runs[run % 16 << 4 | rest[at].bit_length()])
        bits.put_value(rest[at])
    if before < 62:
        bits.put(*runs[0x00])


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def odd_jpeg(seed: int) -> tuple[bytes, tuple[int, int]]:
    """A file, and its height and width."""
    rng = random.Random(seed)
    height, width, parts = rng.randint(1, 50), rng.randint(1, 60), rng.choice([1, 3, 3, 3])
    across, down = rng.choice([(1, 1), (2, 1), (2, 2)]) if parts == 3 else (1, 1)
    most, density = rng.choice([1, 3, 20, 100, 600, 1023]), rng.choice([0, 0.02, 0.1, 0.4, 0.9, 1])
    far, interval = rng.choice([5, 100, 1000]), rng.choice([0, 0, 1, 2, 5])
    tables = [(table(rng, LEVELS), table(rng, RUNS)) for _ in range(2)]
    bits, scan, level = Bits(), b"", [0] * parts
    for unit in range(-(-width // (8 * across)) * -(-height // (8 * down))):
        if interval and unit and not unit % interval:
            scan += bits.ended() + bytes([0xFF, 0xD0 + (unit // interval - 1) % 8])
            level = [0] * parts
        for part in range(parts):
            levels, runs = tables[part > 0]
            for _ in range(1 if part else across * down):
                to = rng.randint(-far, far)
                put_block(bits, levels.codes, runs.codes, to - level[part], coefficients(rng, most, density))
                level[part] = to
    head = b"\xff\xd8" + segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
    for number, (levels, runs) in enumerate(tables):
        steps = bytes(rng.choice([1, 1, 2, 3, 8]) if most < 200 else 1 for _ in range(64))
        head += segment(0xDB, bytes([number]) + steps)
        head += segment(0xC4, bytes([number]) + levels.said) + segment(
            0xC4, bytes([0x10 | number]) + runs.said
        )
    shapes = [bytes([part + 1, 0x11 if part else across << 4 | down, min(part, 1)]) for part in range(parts)]
    head += segment(0xC0, struct.pack(">BHHB", 8, height, width, parts) + b"".join(shapes))
    if interval:
        head += segment(0xDD, struct.pack(">H", interval))
    which = [bytes([part + 1, 0x11 * min(part, 1)]) for part in range(parts)]
    return head + segment(
        0xDA, bytes([parts, *b"".join(which), 0, 63, 0])
    ) + scan + bits.ended() + b"\xff\xd9", (
        height,
        width,
    )
