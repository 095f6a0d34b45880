"""The demo as a user runs it: without a terminal here, its small sizes, everything it promises checked."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

pytest.importorskip("rich")
pytest.importorskip("PIL")
pytest.importorskip("torch")  # it opens files of /sys, and keeps them


def run_example(name: str, *arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "", **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the demo."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def test_the_demo_shows_what_it_promises_and_leaves_trace_and_page(tmp_path: Path) -> None:
    ran = run_example("demo.py", "--quick", cwd=tmp_path, CI="true", COLUMNS="200")
    said = ran.stdout
    assert ran.returncode == 0, said
    assert "\x1b" not in said  # no terminal, no colours or moving bars
    # Failure first, with both loaders. What torch raises is a matter of luck: mostly RuntimeError, or the pipe that it misses first.
    torchs, ours = (said.index(f"$ {word}") for word in ("python examples", "penstock run examples"))
    assert torchs < ours < said.index("The race")
    assert len(re.findall(r"kill -9 \d+, one of its workers, after step 2 of 12", said)) == 2
    assert re.search(r"✗ ended with exit code 1: \w+Error", said), said
    assert re.search(r"worker \d \(pid \d+\) was killed by SIGKILL; it is replaced", said)
    assert (
        "✓ a worker was killed, and the trained weights are those of a run without that, to the last bit"
        in said
    )
    assert "✓ the killed worker was replaced" in said
    assert (
        "go on with 3 workers: the 24 samples that were left, each exactly once, with the same pixels, in order"
        in said
    )
    assert "✓ and the trained weights are those of the run that never stopped, to the last bit" in said
    assert "go on on 2 ranks: the 24 samples that were left, each exactly once, with the same pixels" in said
    assert len(re.findall(r"^  (limit +[\d,]+|no limit: )", said, re.MULTILINE)) >= 1
    assert len(re.findall(r"^  No ratio: 3 rounds are too few, 5 are needed", said, re.MULTILINE)) == 3
    assert "Training is the limit: it waits" in said
    assert said.rstrip().splitlines()[-1].strip() == "penstock run --compare --steps 100 YOUR_train.py"
    assert "Warning" not in said
    assert "Traceback" not in said

    out = tmp_path / "demo-out"
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    assert {event.get("cat") for event in events} >= {"task", "wait", "fault"}
    page = ET.fromstring((out / "summary.html").read_text("utf-8").partition("\n")[2])
    assert len(list(page.iter("{http://www.w3.org/2000/svg}svg"))) == 5
    assert len([part for part in page.iter("div") if part.get("class") == "race"]) == 3
    assert json.loads((out / "state.json").read_text())["batches"] == 6


def test_a_sample_that_differs_fails_the_demo(part: Any) -> None:
    same_rest = part("demo").same_rest
    assert same_rest("run", ["a", "b"], ["a", "b"], in_order=True)[0]
    assert same_rest("run", ["a", "b"], ["b", "a"], in_order=False)[0]
    assert not same_rest("run", ["a", "b"], ["b", "a"], in_order=True)[0]
    assert not same_rest("run", ["a", "b"], ["a"], in_order=False)[0]
    assert not same_rest("run", ["a"], ["a", "a"], in_order=False)[0]
    assert same_rest("run", ["a", "b"], ["a", "c"], in_order=True) == (
        False,
        "run: 1 of the 2 samples that were left are right; 2 came",
    )


def test_the_limit_of_training_is_that_of_all_cores_busy(part: Any) -> None:
    limit = part("demo_race").training_limit
    # A core trains 600 images a second; each of two workers prepares 200: 1/600 + 1/200 core-seconds each image, on two cores.
    assert limit(training=600, preparing=400, workers=2, cores=2) == pytest.approx(300)
    assert limit(training=100, preparing=4000, workers=2, cores=16) == 100, "training alone"
    assert limit(training=9000, preparing=400, workers=2, cores=16) == 400, (
        "as many workers as were asked for"
    )


def test_a_limit_that_a_loader_went_beyond_is_not_believed(part: Any) -> None:
    believable = part("demo_race").believable
    assert believable(100.0, [[50.0], [90.0, 99.0, 120.0]]) == 100.0, "one round may be lucky"
    assert believable(100.0, [[50.0], [101.0]]) is None
    assert believable(None, [[1.0]]) is None


def test_a_script_that_fails_is_told_in_one_line_and_one_that_hangs_is_ended(
    part: Any, monkeypatch: Any
) -> None:
    faults = part("demo_faults")

    def fails() -> None:
        print("step 1 ")
        raise ValueError("down")

    def hangs() -> None:
        signal.pause()

    steps: list[int] = []
    ended = faults.Script(fails).follow(steps.append)
    assert (steps, ended.code, ended.weights) == ([1], 1, "")
    assert ended.last_words() == "ended with exit code 1: ValueError: down"
    monkeypatch.setattr(faults, "DEADLINE_S", 0.5)
    assert faults.Script(hangs).follow(steps.append).code == -signal.SIGKILL


def test_on_a_terminal_the_bars_move(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    screen = part("demo_screen")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = io.StringIO()
    bars = screen.LiveBars(Console(file=shown, force_terminal=True, width=100), {"torch": 2})
    with bars.shown():
        bars.step("torch", "100/s")
        bars.step("torch", "120/s  waits 10%")
    assert "120/s  waits 10%" in shown.getvalue()
    assert "2/2" in shown.getvalue()


def test_the_photos_are_made_once(part: Any, tmp_path: Path) -> None:
    photos = part("demo_photos")
    folder = tmp_path / "photos"
    assert list(photos.make_photos(folder, 6)) == [1, 2, 3, 4, 5, 6]
    before = {file.name: file.stat().st_mtime_ns for file in folder.rglob("*.jpg")}
    assert list(photos.make_photos(folder, 6)) == [6]
    assert {file.name: file.stat().st_mtime_ns for file in folder.rglob("*.jpg")} == before
    assert list(photos.make_photos(folder, 5)) == [1, 2, 3, 4, 5]
    assert len(before) == 6
    assert all(40_000 < file.stat().st_size < 200_000 for file in folder.rglob("*.jpg")), "those of a photo"


def test_without_torchvision_the_demo_has_datasets_of_its_own(
    part: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    photos = part("demo_photos")
    monkeypatch.setattr(photos, "torchvision", lambda: None)
    list(photos.make_photos(tmp_path / "photos", 5))
    theirs, ours = (
        photos.folder_for_torch(tmp_path / "photos", 2),
        photos.folder_for_ours(tmp_path / "photos", 2),
    )
    assert len(theirs) == len(ours) == 10
    for dataset in (theirs, ours):
        image, label = dataset[8]
        assert (tuple(image.shape), label) == ((3, photos.SEEN, photos.SEEN), 3)
        assert image.dtype.is_floating_point


def test_the_quickstart_learns(tmp_path: Path) -> None:
    ran = run_example("quickstart.py", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"epoch 2: (9\d|100)\.\d% right", ran.stdout)
    assert re.search(r"^(training waits|Training does not wait) ", ran.stdout, re.MULTILINE)


def test_the_resume_example_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def batches(*arguments: str) -> list[str]:
        ran = run_example("resume.py", "--checkpoint", str(tmp_path / "c.pt"), *arguments, cwd=tmp_path)
        assert ran.returncode == 0, ran.stdout
        return [line for line in ran.stdout.splitlines() if line.startswith("epoch")]

    whole = batches("--fresh")
    stopped = batches("--stop-after", "7")
    assert len(stopped) == 7
    assert stopped + batches("--workers", "1") == whole
    assert len(whole) == 24


def test_the_ranks_of_the_ddp_example_share_every_sample_once(tmp_path: Path) -> None:
    ran = run_example("ddp.py", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.count("ranks saw 120 + 120 samples, each exactly once") == 2
