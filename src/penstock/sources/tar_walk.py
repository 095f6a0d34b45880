"""List the members of a tar file by reading its headers with range reads, so that remote files work too.

Rule 1: ustar, GNU (long names, base-256 sizes) and pax (`path`, `size`). Archives without random access (compressed, sparse, multi-volume) are
        refused.
Rule 2: a truncated or corrupt file is an error: checksums must match, members must end within the file, a zero block must end the archive.
Rule 3: no header makes us read more than `MOST_EXTENDED` bytes, and each step goes forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.sources.sources import Source, shown

BLOCK = 512
MOST_EXTENDED = 1 << 20
"""Size limit of a long name or a pax header."""

COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
REGULAR = frozenset(b"\x0007")
WITHOUT_DATA = frozenset(b"123456V")
"""Links, devices, folders, pipes and volume labels: no data follows, whatever size the header gives."""


class BadTar(PenstockError, ValueError):
    """A tar file that is truncated, corrupt, or without random access."""


class Member(NamedTuple):
    name: str
    offset: int
    """Of the first byte of data in the tar file."""
    size: int


class ReadWindow:
    """Buffered random reads: headers of small files lie close together, so one chunk covers several."""

    def __init__(self, source: Source, name: str) -> None:
        self._source, self._name, self.size = source, name, source.size(name)
        self._start, self._data = 0, b""

    def get(self, start: int, count: int) -> bytes:
        """Return `count` bytes, fewer at the end of the file."""
        stop = min(start + count, self.size)
        if not self._start <= start <= stop <= self._start + len(self._data):
            end = min(max(stop, start + self._source.chunk_bytes), self.size)
            self._start, self._data = start, self._source.read(self._name, start, end) if end > start else b""
        return self._data[start - self._start : stop - self._start]


def walk(source: Source, name: str) -> Iterator[Member]:
    """Yield the regular files in archive order; raise BadTar."""
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
    """A header is invalid."""


def checked_kind(header: bytes) -> int:
    """Return a header's type; raise unless its checksum matches and its type allows random access."""
    said = number(header[148:156])
    bare = header[:148] + b" " * 8 + header[156:]
    total = sum(bare)
    signed = total - 256 * sum(byte > 127 for byte in bare)  # some old tars sum signed bytes
    if said not in (total, signed):
        raise Malformed("its header's checksum is wrong: this is no tar file, or a corrupt one")
    kind = header[156]
    if kind == ord("S"):
        raise Malformed("sparse files are not supported: pack it without --sparse")
    if kind == ord("M"):
        raise Malformed("multi-volume archives are not supported: join the volumes")
    return kind


def number(data: bytes) -> int:
    """Parse a numeric field: octal digits, or base 256 if the first byte says so."""
    if data[0] & 0x80:
        if data[0] != 0x80:
            raise Malformed("a number in its header is negative or out of range")
        return int.from_bytes(data[1:], "big")
    digits = data.partition(b"\0")[0].strip()
    if digits.strip(b"01234567"):
        raise Malformed(f"{data!r} is not a number")
    return int(digits, 8) if digits else 0


def count(text: str) -> int:
    """Parse the size in a pax header."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Malformed(f"its pax header gives the size {text!r}")
    return int(text)


def plain_name(header: bytes) -> str:
    """Return the name in the header itself; ustar splits long names at a slash."""
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return as_text(prefix + b"/" + name if prefix else name)


def as_text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def extension(kind: int, data: bytes, everywhere: dict[str, str]) -> dict[str, str]:
    """Return what an extended header says of the next member; add what it says of all later ones to `everywhere`."""
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
    """Yield the records of a pax header, each `length key=value`; the length covers the whole line."""
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
