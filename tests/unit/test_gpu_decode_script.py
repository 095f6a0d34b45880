"""What `benchmarks/gpu_decode.py` does without a GPU: which ways it takes, which files, and how it counts."""

from __future__ import annotations

import argparse
import importlib
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")

from tests.unit.test_jpeg_parts import jpeg_of, photo

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("gpu_decode")


def test_a_way_is_read_with_what_it_leaves_out(script: Any) -> None:
    assert script.ways_of("engines:2:32,torchvision:1:64") == [
        script.Way("engines", 2, 32, 3, 1, -5),
        script.Way("torchvision", 1, 64),
    ]
    assert script.ways_of("kernels:1:8:1:32:-5") == [script.Way("kernels", 1, 8, 1, 32, -5)]
    assert len(script.options(["--data", "photos"]).ways) == len(script.WAYS.split(","))


@pytest.mark.parametrize(
    "text", ["engines", "engines:1", "pillow:1:2", "engines:1:x", "engines:0:8", "torchvision:1:8:3"]
)
def test_what_is_no_way_is_refused(script: Any, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        script.ways_of(text)


def test_only_files_are_taken_that_the_engines_take(script: Any, tmp_path: Path) -> None:
    for name, data in {
        "a.jpg": jpeg_of(photo(40, 50)),
        "b.jpeg": jpeg_of(photo(40, 50), progressive=True),
        "c.jpg": jpeg_of(photo(40, 50)[:, :, 0]),
        "d.jpg": b"no image",
        "e.jpg": jpeg_of(photo(1200, 1200)),
    }.items():
        (tmp_path / name).write_bytes(data)
    (found,) = script.photos_in(tmp_path)
    assert (found.height, found.width, found.nbytes) == (40, 50, 6000)
    assert found.data.numpy().tobytes() == (tmp_path / "a.jpg").read_bytes()
    assert script.libjpegs(found).shape == (3, 40, 50)
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(SystemExit, match="no baseline"):
        script.photos_in(tmp_path)


def test_files_come_again_and_again(script: Any) -> None:
    rounds = script.rounds("abc", 2)
    assert [next(rounds) for _ in range(3)] == [["a", "b"], ["c", "a"], ["b", "c"]]


@pytest.mark.parametrize("fails", [False, True])
def test_jobs_count_while_the_work_goes_on_and_their_errors_are_raised(script: Any, fails: bool) -> None:
    called = threading.Event()

    def job() -> int:
        called.set()
        if fails:
            raise RuntimeError("no memory is left")
        return 5

    def work() -> float:
        assert called.wait(10)
        return 7.0

    if fails:
        with pytest.raises(RuntimeError, match="no memory"):
            script.rate([job, job], work)
    else:
        measured = script.rate([job, job], work)
        assert measured.images_per_s > 0
        assert measured.call_ms == sorted(measured.call_ms)
        assert len(measured.call_ms) == 3
        assert measured.found == 7.0
