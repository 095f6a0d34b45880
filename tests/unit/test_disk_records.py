"""How an entry lies in a file: records, walks over them, rows of the index, runs of neighbours."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk_files import Files
from penstock.reuse.stores.disk_index import CLEAN, IN_USE, LARGE, STALE, DiskIndex, IndexRow, check_of
from penstock.reuse.stores.disk_records import ALIGN, HEAD, Found, decode, digest_of, encode, walk
from penstock.reuse.stores.disk_segments import GAP_BYTES, RUN_BYTES, name_of, new_number, number_of, runs_of

DIGEST = digest_of("some name")


def record(sample: int, epoch: int = 0, nbytes: int = 50) -> bytes:
    entry = Entry(np.full(nbytes, sample, np.uint8), b"extra")
    pieces = encode(DIGEST, Wanted(sample, epoch), entry)
    assert pieces is not None
    return b"".join(pieces)


def test_a_record_is_given_out_only_for_what_it_says() -> None:
    data = record(7, 3)
    assert decode(data, DIGEST, Wanted(7, 3)) is not None
    assert decode(data, DIGEST, Wanted(8, 3)) is None
    assert decode(data, DIGEST, Wanted(7, 4)) is None
    assert decode(data, digest_of("another"), Wanted(7, 3)) is None
    assert len(data) % ALIGN == 0


def forged(dtype: bytes, ndim: int, shape: tuple[int, ...], nbytes: int) -> bytes:
    """A record whose checksums are right."""
    from zlib import crc32

    sizes = shape + (0,) * (8 - len(shape))
    head = bytearray(HEAD.pack(0, 0, b"PnKr", 1, DIGEST, 0, 0, nbytes, 0, dtype, *sizes, ndim))
    struct.pack_into("<I", head, 4, crc32(head[8:]))
    struct.pack_into("<I", head, 0, crc32(bytes(nbytes), crc32(head[4:])))
    return bytes(head) + bytes(nbytes)


def test_a_forged_record_of_a_plain_type_is_one() -> None:
    assert decode(forged(b"<f4", 1, (2,), 8), DIGEST, Wanted(0, 0)) is not None


@pytest.mark.parametrize(
    ("dtype", "ndim", "shape", "nbytes"),
    [
        (b"|O", 1, (1,), 8),
        (b"<f4", 1, (3,), 8),
        (b"<f4", 9, (2,), 8),
        (b"<f4", 200, (2,), 8),
        (b"i4,i4", 1, (1,), 8),
        (b"nonsense", 1, (1,), 8),
        (b"\xff\xfe", 1, (1,), 8),
        (b"<f4", 8, (1 << 31,) * 8, 8),
        (b"|V8", 1, (1,), 8),
        (b"", 1, (1,), 8),
    ],
)
def test_types_and_shapes_that_are_not_plain_are_refused(
    dtype: bytes, ndim: int, shape: tuple[int, ...], nbytes: int
) -> None:
    assert decode(forged(dtype, ndim, shape, nbytes), DIGEST, Wanted(0, 0)) is None


@given(st.binary(max_size=400))
def test_rubbish_is_no_record(data: bytes) -> None:
    assert decode(data, DIGEST, Wanted(0, 0)) is None
    assert all(isinstance(found, int) for found in walk(data, DIGEST))


def test_changed_records_are_never_given_out_and_a_walk_finds_the_others() -> None:
    rng, parts = random.Random(0), [record(n, 0, 10 * n) for n in range(6)]
    starts = [sum(map(len, parts[:n])) for n in range(7)]
    whole = b"".join(parts)
    for _ in range(3000):
        data = bytearray(whole)
        at = rng.randrange(len(data))
        for place in range(at, min(at + rng.randrange(1, 40), len(data))):
            data[place] = rng.randrange(256)
        hit = {n for n in range(6) if data[starts[n] : starts[n + 1]] != parts[n]}
        found = [f for f in walk(bytes(data), DIGEST) if isinstance(f, Found) and f.good]
        assert {f.sample for f in found} >= set(range(6)) - hit
        for f in found:
            got = decode(bytes(data[f.start : f.start + f.length]), DIGEST, Wanted(f.sample, 0))
            assert got is not None
            assert (got.values == f.sample).all()


def test_a_walk_passes_over_empty_space_and_tells_of_rubbish() -> None:
    found = list(walk(record(1) + bytes(64) + record(2) + b"rubbish" * 20, DIGEST))
    assert [f.sample for f in found if isinstance(f, Found)] == [1, 2]
    assert [f for f in found if isinstance(f, int)] == [2 * len(record(1)) + 64]
    assert list(walk(bytes(10_000), DIGEST)) == []


def test_a_record_within_another_ones_values_is_not_taken_for_one() -> None:
    inner = np.frombuffer(record(5) * 3, np.uint8)
    pieces = encode(DIGEST, Wanted(1, 0), Entry(inner))
    assert pieces is not None
    assert [f.sample for f in walk(b"".join(pieces), DIGEST) if isinstance(f, Found)] == [1]


# ---- places


def test_numbers_have_names_and_no_other_name_is_one() -> None:
    for number in (new_number(), new_number() | LARGE):
        assert number_of(name_of(number)) == number
        assert number < 1 << 64
    for name in (
        "",
        "0",
        "../../etc/passwd",
        "0x12",
        "x" * 16,
        "ABCDEFABCDEFABCD",
        "1" * 15,
        " " * 15 + "1",
        "1_1",
    ):
        assert number_of(name) == 0


def rows_at(places: list[tuple[int, int, int]]) -> dict[int, IndexRow]:
    return {at: IndexRow(segment, 0, length, offset) for at, (segment, offset, length) in enumerate(places)}


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 1 << 16), st.integers(1, 9000)), max_size=60))
def test_runs_cover_every_place_once_in_order(places: list[tuple[int, int, int]]) -> None:
    runs = runs_of(rows_at(places))
    order = [at for *_, members in runs for at in members]
    assert sorted(order) == list(range(len(places)))
    assert [places[at][:2] for at in order] == sorted(place[:2] for place in places)
    for segment, start, end, which in runs:
        members = [places[at] for at in which]
        assert {member[0] for member in members} == {segment}
        assert start == min(member[1] for member in members)
        assert end == max(member[1] + member[2] for member in members)
        assert end - start <= RUN_BYTES


def test_neighbours_are_read_at_once_and_others_are_not() -> None:
    near, far = (1, 100 + GAP_BYTES, 50), (1, 151 + 2 * GAP_BYTES, 50)
    assert len(runs_of(rows_at([(1, 0, 100), near, far, (2, 0, 10)]))) == 3
    assert runs_of({}) == []


def test_no_more_than_so_much_is_read_at_once() -> None:
    runs = runs_of(rows_at([(1, at << 16, 1 << 16) for at in range(40)]))
    assert max(end - start for _, start, end, _ in runs) <= RUN_BYTES


# ---- rows


@pytest.fixture
def index(tmp_path: Path) -> DiskIndex:
    return DiskIndex(Files(), str(tmp_path), 100)


def test_rows_are_kept_and_a_changed_one_is_none(index: DiskIndex, tmp_path: Path) -> None:
    rows = {sample: IndexRow(77, -1, 16, offset) for sample, offset in ((3, 0), (4, 16), (5, 32), (90, 48))}
    with index.locked():
        index.write(rows)
    assert [IndexRow(*row[:4]) for row in index.table(np.array([*rows])).tolist()] == [*rows.values()]
    assert np.count_nonzero(index.all()["segment"]) == 4
    assert index.table(np.array([6]))["segment"][0] == 0
    data = bytearray(index.files.read(index.fd, 32, 4096 + 32 * 4))
    index.files.write(index.fd, [bytes(data)], 4096 + 32 * 6)  # a row of another sample
    assert index.table(np.array([6]))["segment"][0] == 0
    index.close()


def test_rows_that_changed_meanwhile_are_not_switched(index: DiskIndex) -> None:
    before, after = dict.fromkeys(range(4), IndexRow(5, 0, 16)), dict.fromkeys(range(4), IndexRow(6, 0, 0))
    with index.locked():
        index.write(before)
        index.write({1: IndexRow(9, 0, 0)})
    index.switch(before, after)
    assert [index.row(sample).segment for sample in range(4)] == [6, 9, 6, 6]
    index.close()


def test_no_two_samples_have_the_same_check_for_a_row() -> None:
    assert len({check_of(sample, *IndexRow(1, 0, 0)) for sample in range(1000)}) == 1000


class Boot(Files):
    def __init__(self, name: bytes) -> None:
        self.name = name

    def boot(self) -> bytes:
        return self.name.ljust(16)


def state(index: DiskIndex) -> int:
    found = index._head(index.fd)
    assert found is not None
    return found[1]


def test_an_index_is_trusted_unless_the_machine_stopped_while_it_was_in_use(tmp_path: Path) -> None:
    index = DiskIndex(Boot(b"one"), str(tmp_path), 10)
    assert index.is_stale  # new
    index.is_whole()
    index.close()

    index = DiskIndex(Boot(b"one"), str(tmp_path), 10)
    index.begin(alone=True)  # whoever used it was killed
    assert state(index) == IN_USE
    index.end()
    assert state(index) == CLEAN
    index.close()

    index = DiskIndex(Boot(b"two"), str(tmp_path), 10)
    index.begin(alone=True)
    assert state(index) == IN_USE
    index.close()

    index = DiskIndex(Boot(b"three"), str(tmp_path), 10)
    index.begin(alone=False)
    assert state(index) == IN_USE
    index.begin(alone=True)
    assert state(index) == STALE
    index.end()
    assert state(index) == STALE
    index.close()
