"""Photos to prepare: a folder or a tar of them, or generated ones that compress about as photos do."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "prepare"
SUFFIXES = (".jpg", ".jpeg")
GENERATED = (375, 500)
"""Height and width."""
QUALITY = 90


def photos(data: str | None, count: int | None, report: Callable[[str], None]) -> Path:
    """A folder with one class folder of photos: those in `data` (all, or the first `count`), or as many generated ones."""
    source = None if data is None else Path(data).resolve()
    said = (
        f"generated {count}"
        if source is None
        else f"{source} {source.stat().st_mtime_ns} {source.stat().st_size} {count}"
    )
    root = CACHE / hashlib.sha256(said.encode()).hexdigest()[:12]
    folder = root / "photos"
    if (root / ".whole").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    folder.mkdir(parents=True)
    if source is None:
        report(f"generating {count} photos")
        for number in range(count or 0):
            (folder / f"{number:05}.jpg").write_bytes(generated(number))
    elif source.is_dir():
        found = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES)
        for number, path in enumerate(found[:count]):
            (folder / f"{number:05}.jpg").symlink_to(path)
    else:
        with tarfile.open(source) as tar:
            members = [member for member in tar if Path(member.name).suffix.lower() in SUFFIXES]
            for number, member in enumerate(members[:count]):
                file = tar.extractfile(member)
                assert file is not None
                (folder / f"{number:05}.jpg").write_bytes(file.read())
    if not any(folder.iterdir()):
        raise SystemExit(f"no JPEG files in {data}")
    (root / ".whole").touch()
    return root


def generated(number: int) -> bytes:
    """A JPEG file of smooth noise: a few scales of it, the fine ones fainter, and some grain."""
    import cv2
    import numpy as np

    rng = np.random.default_rng(number)
    height, width = GENERATED
    image = np.full((height, width, 3), 128, np.float32)
    for cells, weight in ((4, 60), (12, 35), (40, 22), (120, 16)):
        coarse = rng.normal(0, weight, (cells, cells, 3)).astype(np.float32)
        image += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    image += rng.normal(0, 7, image.shape).astype(np.float32)
    done, data = cv2.imencode(
        ".jpg", np.clip(image, 0, 255).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, QUALITY]
    )
    assert done
    return data.tobytes()
