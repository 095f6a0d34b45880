"""The checksum of our own is zlib's, wherever it is computed."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import accel

BLOB = np.random.default_rng(0).bytes(70_000)
SIZES = st.one_of(
    st.integers(0, 200),
    st.integers(accel.WORTH_A_CALL - 40, accel.WORTH_A_CALL + 200),
    st.integers(0, 60_000),
)


@given(start=st.integers(0, 999), size=SIZES, before=st.integers(0, 2**32 - 1), view=st.booleans())
def test_it_is_that_of_zlib(start: int, size: int, before: int, view: bool) -> None:
    data = memoryview(BLOB)[7:] if view else BLOB
    assert accel.crc32(data, start, start + size, before) == zlib.crc32(data[start : start + size], before)


def test_any_memory_will_do() -> None:
    for data in (bytearray(BLOB), np.frombuffer(BLOB, np.uint8).data, np.zeros(5000, np.uint8).data, b""):
        assert accel.crc32(data) == zlib.crc32(data)


def test_without_the_library_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accel, "fast_crc32", lambda: None)
    assert accel.crc32(BLOB, 5, 60_000, 9) == zlib.crc32(BLOB[5:60_000], 9)
