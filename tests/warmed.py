"""Folders of files and what `penstock cache warm` keeps of them, for tests."""

from __future__ import annotations

import random
import re
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

from penstock.cache.disk import DiskTier
from penstock.cache.keys import ContentKeys
from penstock.cli.main import main
from penstock.dataset.offers import offered

ROOT = Path(__file__).parents[1]
COUNT = 60
ENDS_S = 60.0


def data_of(number: int) -> bytes:
    rng = random.Random(number)
    return rng.randbytes(rng.randrange(0, 40_000))


def files_below(root: Path, ending: str = "jpg", count: int = COUNT) -> Path:
    for number in range(count):
        file = root / "ab"[number % 2] / f"{number:03}.{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data_of(number))
    return root


def shards_below(root: Path) -> Path:
    root.mkdir(parents=True)
    for shard in range(3):
        with tarfile.open(root / f"part-{shard}.tar", "w") as tar:
            for number in range(shard, COUNT, 3):
                for name, data in (
                    (f"{number:03}.jpg", data_of(number)),
                    (f"{number:03}.cls", b"%d" % number),
                ):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, BytesIO(data))
    return root


def warm(source: Any, path: Path, *more: str, disk: str = "64MiB") -> int:
    return main(["cache", "warm", str(source), "--path", str(path), "--disk", disk, *more])


def check_found(dataset: Any, path: Path) -> None:
    """As a loader's cache asks: its tier, its keys."""
    seam, contents = offered(dataset).seam, dataset.contents()
    assert seam is not None
    tier = DiskTier(
        path, entries=len(dataset), max_bytes=1 << 26, persistent=True, contents=contents, upkeep_s=0
    )
    ranges = [seam.ranges(index) for index in range(len(dataset))]
    found = tier.get_many([*map(ContentKeys(contents, str(Path.cwd())), ranges)])
    assert found == [b"".join(dataset.bytes_from.read(*one) for one in some) for some in ranges]
    assert len(found) == COUNT
    tier.close()


def said(text: str) -> str:
    return re.sub(r"[\d.]+ s$|/tmp/\S*?(?=[:\",]|$)|[\d.,]+ [KM]iB", "…", text.strip(), flags=re.MULTILINE)
