"""The compiled loops called from two threads at once, under the thread sanitizer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")

from tests.unit.test_jpeg_parts import SOURCES, compiler, jpeg_of, photo

HARNESS = Path(__file__).with_name("two_threads.c")
NO_ROOM = "unexpected memory mapping"
"""What the sanitizer says where the kernel lays out memory in a way that it does not know."""


def test_loops_in_two_threads_do_not_race(tmp_path: Path) -> None:
    program, file = tmp_path / "threads", tmp_path / "photo.jpg"
    options = [
        "-O1",
        "-g",
        "-fsanitize=thread",
        "-Wno-tsan",
        "-ffp-contract=off",
        "-I",
        str(SOURCES[0].parent),
    ]
    command = [compiler(), *options, "-o", str(program), str(HARNESS), *map(str, SOURCES), "-lm", "-lpthread"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"the compiler has no thread sanitizer: {built.stderr.strip()[-200:]}")
    file.write_bytes(jpeg_of(photo(90, 120), optimize=True))
    played = subprocess.run(
        [str(program), str(file), "90", "120"],
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    if NO_ROOM in played.stderr:
        pytest.skip("the thread sanitizer does not know this kernel's layout of memory")
    assert (played.stdout, played.returncode) == ("same\n", 0), played.stderr[-4000:]
