"""The files that cases read, written without any library whose version could matter.

JPEG files are committed, since encoders differ: 4:2:0, 4:4:4, 4:2:2, grey, progressive, odd sizes. PNG, WAV and tar files hold what
whole-number formulas give, and decode exactly.
"""

from __future__ import annotations

import io
import struct
import tarfile
import wave
import zlib
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PHOTOS = Path(__file__).parent / "photos"
RATE = 8_000


def jpegs() -> list[bytes]:
    return [path.read_bytes() for path in sorted(PHOTOS.glob("*.jpg"))]


def pattern(number: int, height: int, width: int) -> NDArray[np.uint8]:
    """Colours that say where they are and which image they are of."""
    y, x, c = np.ogrid[:height, :width, :3]
    return ((3 * x + 5 * y + 40 * c + (x * y * (number + 1)) // 16 + 31 * number) % 256).astype(np.uint8)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """An RGB image as a PNG file without filters."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 1)),
        (b"IEND", b""),
    ]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def images() -> list[tuple[str, bytes]]:
    """Twelve (suffix, file)s: the photos, then patterns."""
    drawn = [png(pattern(number, 50 + 7 * number, 70 - 5 * number)) for number in range(4)]
    return [("jpg", data) for data in jpegs()] + [("png", data) for data in drawn]


def recording(number: int) -> bytes:
    """A saw tooth and a bit of noise, 16 bits."""
    at = np.arange(900 + 130 * number, dtype=np.int64)
    saw = (at * (60 + 11 * number)) % 12_000 - 6_000
    noise = (at * at * 7919 + number) % 1_501 - 750
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((saw + noise).astype("<i2").tobytes())
    return out.getvalue()


class Room:
    """Folders of files that cases share, made when first asked for, and a new folder for whoever needs one."""

    def __init__(self, root: Path) -> None:
        self._root, self._made = root, 0

    def fresh(self) -> Path:
        self._made += 1
        return self._root / f"fresh-{self._made}"

    @cached_property
    def photos(self) -> Path:
        files = {
            f"{'cat' if number % 2 else 'dog'}/{number:02}.{suffix}": data
            for number, (suffix, data) in enumerate(images())
        }
        return self._written("photos", files)

    @cached_property
    def damaged(self) -> Path:
        """The photos, two of them cut off."""
        files = {}
        for number, (suffix, data) in enumerate(images()):
            files[f"all/{number:02}.{suffix}"] = data[: len(data) // 2] if number in (2, 9) else data
        return self._written("damaged", files)

    @cached_property
    def sounds(self) -> Path:
        return self._written("sounds", {f"{'ab'[n % 2]}/{n:02}.wav": recording(n) for n in range(10)})

    @cached_property
    def shards(self) -> Path:
        folder = self._root / "shards"
        folder.mkdir()
        for shard in range(2):
            with tarfile.open(folder / f"part-{shard}.tar", "w") as tar:
                for number, (suffix, data) in list(enumerate(images()))[shard::2]:
                    for name, content in ((suffix, data), ("cls", b"%d" % number)):
                        info = tarfile.TarInfo(f"{number:03}.{name}")
                        info.size = len(content)
                        tar.addfile(info, io.BytesIO(content))
        return folder

    def _written(self, name: str, files: dict[str, bytes]) -> Path:
        for path, data in files.items():
            target = self._root / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        return self._root / name
