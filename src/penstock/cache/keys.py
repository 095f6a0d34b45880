"""Names of cached bytes."""

from __future__ import annotations

import hashlib

KEY_BYTES = 16


def key_of(name: str, start: int, end: int | None, stamp: str) -> bytes:
    """Return the key of bytes [start, end) of a file. `stamp` changes with the file's content, so a key never means other bytes."""
    said = repr(
        (name, start, end, stamp)
    ).encode()  # an escaped text: lengths and odd characters are unambiguous
    return hashlib.blake2b(said, digest_size=KEY_BYTES).digest()
