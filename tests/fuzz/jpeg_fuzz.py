"""Builds and runs the libFuzzer target `jpeg_fuzz.c`: the compiled JPEG decoder under the address and undefined-behaviour sanitizers.

One seed is `EXECUTIONS` files. What was found to reach new code is kept in `out/fuzz/jpeg`, where the next seed begins with it; a file that
fails is kept there too, as `failed-*`. To see one: python -m tests.fuzz.jpeg_fuzz FILE
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ACCEL = ROOT / "src" / "penstock" / "accel"
SOURCES = [Path(__file__).with_suffix(".c"), ACCEL / "jpeg.c", ACCEL / "accel.c"]
OPTIONS = [
    "-g",
    "-O1",
    "-ffp-contract=off",
    "-fsanitize=fuzzer,address,undefined",
    "-fno-sanitize-recover=all",
]
WITH_LIBJPEG = ["-DWITH_LIBJPEG", "-ljpeg"]
LONGEST_FILE = 4096
EXECUTIONS = 100_000
"""Of one seed of a campaign: a few minutes of one core."""
KEPT = ROOT / "out" / "fuzz" / "jpeg"


class NoFuzzer(Exception):
    """Why the target cannot be built here."""


def build(folder: Path) -> Path:
    """The target, built once for these sources; where libjpeg's headers are installed, it compares with libjpeg."""
    clang = shutil.which("clang")
    if clang is None:
        raise NoFuzzer("needs clang (Debian: clang, libclang-rt-14-dev)")
    said = b"".join(path.read_bytes() for path in [*SOURCES, *sorted(ACCEL.glob("*.h"))])
    target = folder / f"target-{hashlib.sha256(said + repr(OPTIONS).encode()).hexdigest()[:16]}"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as draft:
        new = Path(draft) / "target"
        for more in (WITH_LIBJPEG, []):
            command = [clang, *OPTIONS, *map(str, SOURCES), *more, "-lm", "-o", str(new)]
            built = subprocess.run(command, capture_output=True, text=True, check=False)
            if not built.returncode:
                new.rename(target)
                return target
    raise NoFuzzer(f"clang has no libFuzzer here: {built.stderr.strip()[-300:]}")


def write_seeds(folder: Path) -> None:
    """The files that a campaign begins with: photos, and valid files with tables that no encoder would write."""
    from tests.unit.odd_jpegs import odd_jpeg
    from tests.unit.test_jpeg_parts import SAMPLINGS, jpeg_of, photo

    folder.mkdir(parents=True, exist_ok=True)
    found = [odd_jpeg(seed)[0] for seed in range(60)]
    for sampling in SAMPLINGS:
        for options in ({}, {"optimize": True}, {"restart_marker_blocks": 2}):
            found.append(jpeg_of(photo(20, 28), subsampling=sampling, quality=75, **options))
    for data in found:
        if len(data) <= LONGEST_FILE:
            (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)


def play(target: Path, corpus: Path, *, seed: int, executions: int) -> tuple[int, str]:
    """How many files were decoded, and what went wrong or ''."""
    command = [
        str(target),
        f"-seed={seed + 1}",
        f"-runs={executions}",
        f"-max_len={LONGEST_FILE}",
        "-timeout=60",
        "-rss_limit_mb=1024",
        f"-artifact_prefix={corpus.parent / 'failed-'}",
        str(corpus),
    ]
    # A symboliser starts for each report only; leaks are looked for as well, where the machine allows it.
    played = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    counts = re.findall(r"^(?:#|Done )(\d+)", played.stderr, re.MULTILINE)
    done = int(counts[-1]) if counts else 0
    return done, "" if not played.returncode else played.stderr[-3000:]


@functools.cache
def prepared(folder: Path) -> Path:
    write_seeds(folder / "files")
    return build(folder)


def run(seed: int) -> dict[str, Any]:
    """One seed of `benchmarks/jpeg_fuzz_campaign.py`."""
    try:
        done, bad = play(prepared(KEPT), KEPT / "files", seed=seed, executions=EXECUTIONS)
    except NoFuzzer as exc:
        done, bad = 0, str(exc)
    row = {"seed": seed, "ok": not bad, "executions": done}
    return row if not bad else {**row, "why": bad}


if __name__ == "__main__":
    sys.exit(subprocess.run([str(build(KEPT)), *map(os.fspath, sys.argv[1:])], check=False).returncode)
