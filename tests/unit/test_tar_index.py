"""The walk over a tar file agrees with the standard library's, refuses what it cannot read, and its index is kept."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.sources import tar_index as tarindex
from penstock.sources.sources import LocalFiles
from penstock.sources.tar_index import TarIndex, index_of, places_of
from penstock.sources.tar_walk import BLOCK, BadTar, Member, walk
from tests.memory_source import Memory

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
FILES = [
    ("a/000.jpg", b"x" * 700),
    ("a/000.cls", b"7"),
    ("a/" + "b" * 150 + ".jpg", b""),
    ("ü€/c.jpg", b"y" * 512),
]


def packed(files: Sequence[tuple[str, bytes]], form: str = "pax") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[form]) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def walked(data: bytes) -> list[Member]:
    return list(walk(Memory({"x.tar": data}), "x.tar"))


def by_tarfile(data: bytes) -> list[Member]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [Member(info.name, info.offset_data, info.size) for info in tar if info.isreg()]


def header(name: bytes, size: bytes, kind: bytes = b"0", magic: bytes = b"ustar\x0000") -> bytes:
    """A header with these fields as they are, and the right checksum."""
    block = bytearray(BLOCK)
    block[: len(name)], block[124 : 124 + len(size)], block[156:157] = name, size, kind
    block[257 : 257 + len(magic)], block[148:156] = magic, b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def octal(size: int) -> bytes:
    return b"%011o\0" % size


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


END = bytes(2 * BLOCK)

# ---- agreement with tarfile

pieces = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60)
names = st.lists(pieces, min_size=1, max_size=5).map("/".join).filter(lambda name: not name.startswith("/"))
ascii_names = st.from_regex(r"[a-z0-9_.]{1,40}(/[a-z0-9_.]{1,40}){0,2}", fullmatch=True)
contents = st.integers(0, 2000).map(bytes)


@pytest.mark.parametrize("form", FORMATS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_the_walk_agrees_with_tarfile(form: str, data: st.DataObject) -> None:
    files = data.draw(
        st.lists(st.tuples(ascii_names if form == "ustar" else names, contents), max_size=6), label="files"
    )
    tar = packed(files, form)
    found = walked(tar)
    assert found == by_tarfile(tar)
    assert [(member.name, member.size) for member in found] == [(name, len(data)) for name, data in files]
    assert all(tar[at : at + size] == data for (_, at, size), (_, data) in zip(found, files, strict=True))


def test_folders_links_and_global_headers_are_passed_over(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x"}) as tar:
        for name, kind in [("d", tarfile.DIRTYPE), ("l", tarfile.SYMTYPE), ("h", tarfile.LNKTYPE)]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "e" * 200
            tar.addfile(info)
        info = tarfile.TarInfo("f.jpg")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    assert walked(out.getvalue()) == by_tarfile(out.getvalue())
    assert [member.name for member in walked(out.getvalue())] == ["f.jpg"]


def test_names_that_are_no_utf8_survive(tmp_path: Path) -> None:
    tar = header(b"caf\xe9.jpg", octal(0)) + END
    index = TarIndex.of(walked(tar))
    assert index.names == ["caf\udce9.jpg"] == [member.name for member in by_tarfile(tar)]
    tarindex.save(tmp_path / "i", index, "stamp")
    kept = tarindex.load(tmp_path / "i", "stamp", len(tar))
    assert kept is not None
    assert kept.names == index.names


def test_sizes_in_base_256_and_in_pax_headers_count() -> None:
    big = header(b"a.bin", b"\x80" + (600).to_bytes(11, "big"), magic=b"ustar  \0") + padded(bytes(600))
    record = b"12 size=700\n"
    pax = (
        header(b"p", octal(len(record)), b"x")
        + padded(record)
        + header(b"b.bin", octal(0))
        + padded(bytes(700))
    )
    tar = big + pax + END
    assert walked(tar) == by_tarfile(tar) == [("a.bin", 512, 600), ("b.bin", 3072, 700)]


def test_a_size_of_many_gigabytes_needs_no_reading() -> None:
    size = 50 << 30

    class Long(Memory):
        """Zeros behind what is there, but never read: only a header far behind is."""

        def size(self, name: str) -> int:
            return BLOCK + size + 2 * BLOCK

        def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
            assert end is not None
            assert end - start <= self.chunk_bytes
            return (self.files[name] + bytes(end))[start:end] if start < BLOCK else bytes(end - start)

    source = Long({"x.tar": header(b"a.bin", b"\x80" + size.to_bytes(11, "big"))})
    assert list(walk(source, "x.tar")) == [("a.bin", BLOCK, size)]


# ---- what is refused


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_a_tar_that_is_cut_off_anywhere_is_an_error(form: str) -> None:
    whole = packed(FILES, form)
    found = walked(whole)
    complete = -(-(found[-1].offset + found[-1].size) // BLOCK) * BLOCK + BLOCK
    for length in range(0, complete, 7 if form == "pax" else 1):  # every byte of one format is enough
        with pytest.raises(BadTar):
            walked(whole[:length])
    for length in range(complete, len(whole), 97):  # only padding is missing
        assert walked(whole[:length]) == found


@settings(deadline=None, max_examples=300)
@given(at=st.integers(0, 8191), value=st.integers(0, 255), form=st.sampled_from(["gnu", "pax"]))
def test_a_changed_byte_is_an_error_or_harmless_but_never_a_hang(at: int, value: int, form: str) -> None:
    tar = bytearray(packed(FILES, form))
    tar[at] = value
    try:
        found = walked(bytes(tar))
    except BadTar:
        return
    assert all(0 <= member.offset <= member.offset + member.size <= len(tar) for member in found)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "cut off"),
        (b"\x1f\x8b" + bytes(600), r"compressed \(gzip\)"),
        (b"BZh9" + bytes(600), r"compressed \(bzip2\)"),
        (b"\xfd7zXZ\x00" + bytes(600), r"compressed \(xz\)"),
        (b"\x28\xb5\x2f\xfd" + bytes(600), r"compressed \(zstd\)"),
        (b"PK\x03\x04" + b"x" * 600, "checksum is wrong|is not a number"),
        (header(b"a", octal(0), b"S") + END, "sparse"),
        (header(b"a", octal(0), b"M") + END, "multi-volume"),
        (header(b"a", octal(22), b"x") + padded(b"22 GNU.sparse.major=1\n") + END, "sparse"),
        (header(b"a", octal(8), b"x") + padded(b"9 path=a") + END, "pax header is malformed"),
        (header(b"a", octal(8), b"x") + padded(b"0 path=\n") + END, "pax header is malformed"),
        (header(b"a", octal(11), b"x") + padded(b"11 size=-1\n") + header(b"b", octal(0)) + END, "size '-1'"),
        (header(b"a", octal(9), b"x") + padded(b"9 path=b\n") + END, "belongs to no file"),
        (header(b"a", b"\xff" * 12) + END, "negative or out of range"),
        (header(b"a", b"12x45") + END, "is not a number"),
        (header(b"a", octal(3 << 20), b"L") + bytes(3 << 20) + END, r"extended header has 3,145,728 bytes"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(data: bytes, says: str) -> None:
    with pytest.raises(BadTar, match=says):
        walked(data)


# ---- the kept index


def shard(folder: Path, files: Sequence[tuple[str, bytes]] = FILES) -> str:
    path = folder / "s.tar"
    path.write_bytes(packed(files))
    return str(path)


def use(name: str, places: Sequence[Path]) -> tuple[list[Member], bool]:
    source = LocalFiles()
    index, new = index_of(source, name, places)
    source.close()
    return [
        Member(*row) for row in zip(index.names, index.offsets.tolist(), index.sizes.tolist(), strict=True)
    ], new


def test_an_index_is_built_once_and_kept_beside_the_shard(tmp_path: Path) -> None:
    name = shard(tmp_path)
    places = places_of(name, name, None)
    first, second = use(name, places), use(name, places)
    assert (first[1], second[1]) == (True, False)
    assert first[0] == second[0] == walked(Path(name).read_bytes())
    assert sorted(os.listdir(tmp_path)) == ["s.tar", "s.tar.penstock-index"]


def test_a_stale_index_is_rebuilt(tmp_path: Path) -> None:
    name = shard(tmp_path)
    use(name, places_of(name, name, None))
    shard(tmp_path, FILES[:2])
    found, new = use(name, places_of(name, name, None))
    assert new
    assert len(found) == 2


def test_an_index_that_is_damaged_anywhere_is_rebuilt(tmp_path: Path) -> None:
    name = shard(tmp_path)
    (place,) = places_of(name, None, tmp_path / "indexes")
    whole, _ = use(name, [place])
    good = place.read_bytes()
    source = LocalFiles()
    stamp, size = source.stamp(name), source.size(name)
    source.close()
    assert tarindex.decode(good, stamp, size) is not None
    for at in range(len(good)):
        assert tarindex.decode(good[:at], stamp, size) is None
        assert tarindex.decode(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :], stamp, size) is None
    place.write_bytes(good[:-1])
    assert use(name, [place]) == (whole, True)
    assert place.read_bytes() == good


@pytest.mark.parametrize(
    "index",
    [
        TarIndex.of([Member("a", 0, 5_001)]),
        TarIndex.of([Member("a", -1, 3)]),
        TarIndex.of([Member("a", 5, -1)]),
        TarIndex.of([Member("a", 2**62, 2**62)]),
        TarIndex(
            ["a", "b"], TarIndex.of([Member("a", 0, 1)]).offsets, TarIndex.of([Member("a", 0, 1)]).sizes
        ),
    ],
)
def test_an_index_that_points_outside_of_its_shard_is_not_believed(index: TarIndex) -> None:
    assert tarindex.decode(tarindex.encode(index, "s"), "s", 5_000) is None


def test_a_link_a_folder_and_a_pipe_in_its_place_are_not_followed(tmp_path: Path) -> None:
    name = shard(tmp_path)
    (place,) = places_of(name, None, tmp_path)
    use(name, [place])
    elsewhere = tmp_path / "elsewhere"
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink(elsewhere, path)):
        place.rename(elsewhere)
        make(place)
        source = LocalFiles()
        assert tarindex.load(place, source.stamp(name), source.size(name)) is None
        source.close()
        place.rmdir() if place.is_dir() and not place.is_symlink() else place.unlink()
        elsewhere.rename(place)


def test_where_the_shard_s_folder_cannot_be_written_the_cache_folder_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = shard(tmp_path)
    beside, cached = places_of(name, name, None)
    assert cached.parent == tmp_path / "cache" / "penstock"
    beside.mkdir()  # so that it cannot be replaced, whoever runs this
    assert use(name, [beside, cached])[1]
    assert cached.exists()
    assert not use(name, [beside, cached])[1]
    assert places_of("http://host/s.tar?secret", None, None)[0].name.count("secret") == 0


def test_an_index_that_can_be_kept_nowhere_is_used_all_the_same(tmp_path: Path) -> None:
    name = shard(tmp_path)
    assert use(name, [tmp_path / "s.tar" / "below-a-file"])[1]
    assert use(name, [])[1]


def test_several_builders_at_once_leave_one_whole_index(tmp_path: Path) -> None:
    name = shard(tmp_path, [(f"{number}.jpg", bytes(9)) for number in range(200)])
    places = places_of(name, name, None)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(use(name, places)[0]))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 6
    assert sorted(os.listdir(tmp_path)) == ["s.tar", "s.tar.penstock-index"]
    assert not use(name, places)[1]
