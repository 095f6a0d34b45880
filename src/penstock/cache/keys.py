"""Names of cached bytes. A sample's bytes are those of its ranges, one behind the other."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from penstock.sources.sources import ByteRange

KEY_BYTES = 16
SCOPE_BYTES = 8


def scope_of(facts: str) -> bytes:
    """Name the samples of one dataset within a job. `facts`: what tells it from the job's other datasets; the same on all ranks and machines."""
    return hashlib.blake2b(facts.encode("utf-8", "surrogateescape"), digest_size=SCOPE_BYTES).digest()


def sample_key(scope: bytes, sample: int) -> bytes:
    """Return the key of a sample's bytes in memory and between machines: for one job."""
    return scope + sample.to_bytes(KEY_BYTES - SCOPE_BYTES, "little")


def content_key(contents: str, ranges: Sequence[ByteRange]) -> bytes:
    """Return the key of a sample's bytes on disk, for any job. `contents` changes with the dataset's content (`StagedDataset.contents`), so a key never
    means other bytes."""
    said = repr((contents, [tuple(one) for one in ranges]))  # an escaped text: odd characters are unambiguous
    return hashlib.blake2b(said.encode("utf-8", "surrogateescape"), digest_size=KEY_BYTES).digest()


class ContentKeys:
    """`content_key` for many samples of one dataset: `contents` may name thousands of shards, so it is hashed once."""

    def __init__(self, contents: str, cwd: str = "") -> None:
        """`cwd`: where relative names begin; keys are those of whole names."""
        self._cwd = cwd
        self._begun = hashlib.blake2b(
            f"({contents!r}, ".encode("utf-8", "surrogateescape"), digest_size=KEY_BYTES
        )

    def __call__(self, ranges: Sequence[ByteRange]) -> bytes:
        found = self._begun.copy()
        whole = [(self._whole(name), start, end) for name, start, end in ranges]
        found.update(f"{whole!r})".encode("utf-8", "surrogateescape"))
        return found.digest()

    def _whole(self, name: str) -> str:
        return os.path.normpath(os.path.join(self._cwd, name)) if self._cwd and "://" not in name else name  # noqa: PTH118
