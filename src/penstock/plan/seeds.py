"""Seeds: every random draw is a function of its purpose, never of who draws it.

Rule 1: a seed is a pure function of (purpose, seed, epoch, position, key), or of (sample seed, op, call). It is
        the same in every process, on every platform and under every PYTHONHASHSEED, so that retries, resumes
        and other worker counts change nothing.
Rule 2: the inputs are absorbed one by one into a 64-bit state, each by one step of splitmix64. A step is a
        bijection of its input, so inputs that differ in one value only never collide; any two others do with
        probability 2**-64.
Rule 3: samples, batches, orders and ops start from different states, so that their seeds do not meet.
"""

from __future__ import annotations

import operator
import re
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

MASK64: Final = 0xFFFF_FFFF_FFFF_FFFF
GOLDEN64: Final = 0x9E37_79B9_7F4A_7C15
MIX64_A: Final = 0xBF58_476D_1CE4_E5B9
MIX64_B: Final = 0x94D0_49BB_1331_11EB
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


def _digest(text: str) -> int:
    """Return 64 bits of a text, the same in every process."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8, person=b"penstock").digest(), "little")


_SAMPLE: Final = _digest("sample")
_BATCH: Final = _digest("batch")
_SHARE: Final = _digest("share")
_ORDER: Final = _digest("order")
_RENEWAL: Final = _digest("renewal")
_PARTIAL: Final = _digest("partial")
_HOME: Final = _digest("home")
_DEAL: Final = _digest("deal")


def mix64(value: int) -> int:
    """Do one step of splitmix64 from the state `value`: a bijection of 64-bit numbers that separates neighbours."""
    value = (value + GOLDEN64) & MASK64
    value = ((value ^ (value >> 30)) * MIX64_A) & MASK64
    value = ((value ^ (value >> 27)) * MIX64_B) & MASK64
    return value ^ (value >> 31)


def key_number(key: object) -> int:
    """Return the 64-bit number of a sample key: itself for any integer, else a digest of its text."""
    if type(key) is not int:
        try:
            key = operator.index(key)  # type: ignore[arg-type]  # numpy's integers, tensors of one integer
        except TypeError:
            return _digest(_text(key))
    if -(1 << 63) <= key < 1 << 63:
        return key & MASK64
    return _digest(str(key))


def order_key(seed: int, epoch: int) -> int:
    """Return the key of one epoch's shuffle."""
    return _start(_ORDER, seed, epoch)


def renewal_key(seed: int) -> int:
    """Return the key of the renewal places; the same in all epochs."""
    return _start(_RENEWAL, seed, 0)


def home_key(seed: int, node: int) -> int:
    """Return the key of a node's draws for samples: lowest draw, home."""
    return _start(_HOME, seed, node)


def deal_key(seed: int, epoch: int, position: int) -> int:
    """Return the key of the deal of the global batch that begins at `position`."""
    return mix64(_start(_DEAL, seed, epoch) ^ (int(position) & MASK64))


def partial_seed(seed: int, renewed: int, key: object) -> int:
    """Return the seed of a sample's kept part, prepared anew in the epoch `renewed` and reused since."""
    return mix64(_start(_PARTIAL, seed, renewed) ^ key_number(key))


class SeedStream:
    """The seeds of one epoch. (seed, epoch) is mixed once; a sample's seed then costs about a microsecond."""

    __slots__ = ("_batch", "_sample")

    def __init__(self, seed: int, epoch: int) -> None:
        self._sample = _start(_SAMPLE, seed, epoch)
        self._batch = _start(_BATCH, seed, epoch)

    def sample(self, position: int, key: object) -> int:
        """Return the seed of the sample `key` at `position` of the epoch's global order."""
        return mix64(mix64(self._sample ^ (int(position) & MASK64)) ^ key_number(key))  # guard: seed-position

    def batch(self, position: int) -> int:
        """Return the seed of code that sees a whole batch, which begins at `position`."""
        return mix64(self._batch ^ (int(position) & MASK64))


class ShareSeeds:
    """The seeds of one worker's share of an iterable dataset, in one epoch."""

    __slots__ = ("_batch", "start")

    def __init__(self, seed: int, epoch: int, worker: int) -> None:
        self.start = mix64(_start(_SHARE, seed, epoch) ^ worker)
        """Seed of draws in `iter(dataset)`."""
        self._batch = mix64(self.start)

    def sample(self, batch: int, ordinal: int) -> int:
        """Return the seed of one sample; `batch` counts the batches of this share."""
        return mix64(mix64(self._batch ^ (batch & MASK64)) ^ (ordinal & MASK64))

    def collate(self, batch: int) -> int:
        """Return the seed of a collate function over that batch."""
        return self.sample(batch, -1)


class Company(NamedTuple):
    """A sample's batch: draws shared by several samples come from this."""

    batch: int
    """The batch's seed, a function of its first position."""
    ordinal: int
    """The sample's index in the batch."""

    def shared(self, samples: int | None) -> int:
        """Return a seed shared by the whole batch, or by each `samples` consecutive samples of it."""
        return op_seed(self.batch, "shared", 0 if samples is None else self.ordinal // samples)

    def within(self, purpose: str, number: int) -> Company:
        """Return the same samples, for another purpose."""
        return Company(op_seed(self.batch, purpose, number), self.ordinal)


def sample_seed(seed: int, epoch: int, position: int, key: object) -> int:
    """Return the 64-bit seed of one sample's preparation: `SeedStream(seed, epoch).sample(position, key)`."""
    return SeedStream(seed, epoch).sample(position, key)


def op_seed(sample_seed: int, op: str, call: int) -> int:
    """Return the 64-bit seed of the `call`-th call of `op` on the sample with `sample_seed`."""
    return mix64(mix64(sample_seed ^ _op_number(op)) ^ (call & MASK64))


def _start(purpose: int, seed: int, epoch: int) -> int:
    """Return the initial state for one purpose in one epoch; `seed` counts modulo 2**64."""
    return mix64(mix64(purpose ^ (int(seed) & MASK64)) ^ (int(epoch) & MASK64))  # guard: seed-epoch


@lru_cache(maxsize=1024)
def _op_number(op: str) -> int:
    return _digest(f"op {op}")


def _text(key: object) -> str:
    """Return a key's text, the same in every process: no addresses, sets sorted, NumPy numbers as plain ones."""
    match key:
        case str():
            return repr(str(key))
        case float():
            return repr(float(key))
        case tuple() | list():
            return f"({','.join(map(_text, key))})"
        case set() | frozenset():
            return f"{{{','.join(sorted(map(_text, key)))}}}"
    try:
        return str(operator.index(key))  # type: ignore[arg-type]
    except TypeError:
        return _ADDRESS.sub("", repr(key))
