"""Photos in the format of each who reads them: `python _cache_formats.py KIND PHOTOS OUT SHARD_BYTES`, by the interpreter of its environment.

A sample is the file's bytes and a number. All formats have shards of about the same size.
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path
from typing import Any


def photos_of(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def tar(folder: Path, out: Path, shard_bytes: int) -> None:
    out.mkdir(parents=True)
    shard, used = None, 0
    for number, path in enumerate(photos_of(folder)):
        data = path.read_bytes()
        if shard is None or used + len(data) > shard_bytes:
            if shard is not None:
                shard.close()
            shard, used = tarfile.open(out / f"{len(list(out.iterdir())):04}.tar", "w"), 0  # noqa: SIM115
        for suffix, content in (("jpg", data), ("cls", str(number).encode())):
            info = tarfile.TarInfo(f"{number:07}.{suffix}")
            info.size = len(content)
            shard.addfile(info, io.BytesIO(content))
        used += len(data)
    if shard is not None:
        shard.close()


def mds(folder: Path, out: Path, shard_bytes: int) -> None:
    from _prepare_subjects import import_torchvision

    import_torchvision()  # beside a CPU build of torch it wants help
    from streaming import MDSWriter

    columns = {"jpg": "bytes", "cls": "int"}
    with MDSWriter(out=str(out), columns=columns, size_limit=shard_bytes) as writer:
        for number, path in enumerate(photos_of(folder)):
            writer.write({"jpg": path.read_bytes(), "cls": number})


def sample_of(entry: tuple[int, str]) -> dict[str, Any]:
    return {"jpg": Path(entry[1]).read_bytes(), "cls": entry[0]}


def litdata(folder: Path, out: Path, shard_bytes: int) -> None:
    import litdata as ld

    inputs = [(number, str(path)) for number, path in enumerate(photos_of(folder))]
    ld.optimize(
        fn=sample_of,
        inputs=inputs,
        output_dir=str(out),
        chunk_bytes=shard_bytes,
        num_workers=1,
        verbose=False,
    )


KINDS = {"tar": tar, "mds": mds, "litdata": litdata}


if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
