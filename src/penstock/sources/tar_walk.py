"""What is in a tar file and where: a pass over its headers, by ranges, so that it works on a server's file too.

Rule 1: ustar, GNU (long names, base-256 sizes) and pax (`path`, `size`). What cannot be read at random (compressed, sparse and
        multi-volume archives) is refused.
Rule 2: a file that is cut off or corrupt is an error, whatever it holds: checksums are checked, members must end before the
        file does, and a zero block must end the archive.
Rule 3: no header makes us read more than `MOST_EXTENDED` bytes, and each step goes forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.sources.sources import Source, shown

BLOCK = 512
MOST_EXTENDED = 1 << 20
"""Bytes of a long name or of a pax header."""

COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
REGULAR = frozenset(b"\x0007")
WITHOUT_DATA = frozenset(b"123456V")
"""Links, devices, folders, pipes and volume labels: whatever size their header gives, no data follows."""


class BadTar(PenstockError, ValueError):
    """A tar file that is cut off, corrupt, or of a kind that cannot be read at random."""


class Member(NamedTuple):
    name: str
    offset: int
    """Of its first byte in the tar file."""
    size: int


class ReadWindow:
    """Bytes of a file at any place, read from its source in chunks: headers of small files lie close together."""

    def __init__(self, source: Source, name: str) -> None:
        self._source, self._name, self.size = source, name, source.size(name)
        self._start, self._data = 0, b""

    def get(self, start: int, count: int) -> bytes:
        """`count` bytes; fewer where the file ends."""
        stop = min(start + count, self.size)
        if not self._start <= start <= stop <= self._start + len(self._data):
            end = min(max(stop, start + self._source.chunk_bytes), self.size)
            self._start, self._data = start, self._source.read(self._name, start, end) if end > start else b""
        return self._data[start - self._start : stop - self._start]


def walk(source: Source, name: str) -> Iterator[Member]:
    """The regular files of a tar file in their order; raises BadTar."""
    window = ReadWindow(source, name)
    begin = window.get(0, BLOCK)
    for magic, how in COMPRESSED.items():
        if begin.startswith(magic):
            raise BadTar(f"{shown(name)} is compressed ({how}), so it cannot be read at random: unpack it")
    at, everywhere, here = 0, dict[str, str](), dict[str, str]()
    while True:
        header = window.get(at, BLOCK)
        if len(header) < BLOCK:
            # guard: tar-end
            raise BadTar(f"{shown(name)} is cut off: it ends at byte {window.size:,} without an end mark")
        if not header.strip(b"\0"):
            if here:
                raise BadTar(f"{shown(name)} is corrupt: an extended header at its end belongs to no file")
            return
        try:
            kind = checked_kind(header)
            extended = kind in b"LKxXg"
            told = {} if extended else everywhere | here
            size = count(told["size"]) if "size" in told else number(header[124:136])
            size = 0 if kind in WITHOUT_DATA else size
            data = at + BLOCK
            if data + size > window.size:
                raise BadTar(
                    f"{shown(name)} is cut off: its bytes end at {window.size:,}, those of a member at {data + size:,}"
                )
            if extended:
                if size > MOST_EXTENDED:  # guard: tar-header-size
                    raise Malformed(f"its extended header has {size:,} bytes")
                here |= extension(kind, window.get(data, size), everywhere)
            else:
                path = told.get("path", plain_name(header))
                if kind in REGULAR and not path.endswith("/"):
                    yield Member(path, data, size)
                here = {}
        except Malformed as exc:
            raise BadTar(f"{shown(name)} cannot be read at byte {at:,}: {exc}") from exc
        at = data + -(-size // BLOCK) * BLOCK


class Malformed(ValueError):
    """What is wrong with one header."""


def checked_kind(header: bytes) -> int:
    """A header's type; raises unless its checksum is right and its kind can be read at random."""
    said = number(header[148:156])
    bare = header[:148] + b" " * 8 + header[156:]
    total = sum(bare)
    signed = total - 256 * sum(byte > 127 for byte in bare)  # as some old tars have it
    if said not in (total, signed):
        raise Malformed("its header's checksum is wrong: this is no tar file, or a corrupt one")
    kind = header[156]
    if kind == ord("S"):
        raise Malformed("sparse files are not supported: pack it without --sparse")
    if kind == ord("M"):
        raise Malformed("multi-volume archives are not supported: join the volumes")
    return kind


def number(data: bytes) -> int:
    """A numeric field: octal digits, or base 256 where the first byte says so."""
    if data[0] & 0x80:
        if data[0] != 0x80:
            raise Malformed("a number in its header is negative or out of range")
        return int.from_bytes(data[1:], "big")
    digits = data.partition(b"\0")[0].strip()
    if digits.strip(b"01234567"):
        raise Malformed(f"{data!r} is not a number")
    return int(digits, 8) if digits else 0


def count(text: str) -> int:
    """A pax header's size."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Malformed(f"its pax header gives the size {text!r}")
    return int(text)


def plain_name(header: bytes) -> str:
    """The name in a header itself; ustar splits long ones at a slash."""
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return as_text(prefix + b"/" + name if prefix else name)


def as_text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def extension(kind: int, data: bytes, everywhere: dict[str, str]) -> dict[str, str]:
    """What an extended header says of the next member; what it says of all further ones goes to `everywhere`."""
    if kind == ord("K"):
        return {}
    if kind == ord("L"):
        return {"path": as_text(data.partition(b"\0")[0])}
    said = dict(records(data))
    if sparse := next((key for key in said if key.startswith("GNU.sparse.")), None):
        raise Malformed(f"sparse files are not supported ({sparse}): pack it without --sparse")
    said = {key: said[key] for key in ("path", "size") if key in said}
    if kind == ord("g"):
        everywhere |= said
        return {}
    return said


def records(data: bytes) -> Iterator[tuple[str, str]]:
    """The lines of a pax header, each `length key=value`, the length being the whole line's."""
    at = 0
    while at < len(data) and data[at]:
        space = data.find(b" ", at, at + 20)
        digits = data[at:space] if space > 0 else b""
        end = at + int(digits) if digits.isdigit() else 0
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if end <= space or end > len(data) or data[end - 1 : end] != b"\n" or not equals:
            raise Malformed("its pax header is malformed")
        yield as_text(key), as_text(value)
        at = end
