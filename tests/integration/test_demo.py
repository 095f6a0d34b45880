"""The demo as a user runs it: without a terminal here, its small sizes, everything it promises checked."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
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


def run_example(name: str, *arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "", **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the demo."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def test_the_demo_shows_what_it_promises_and_leaves_trace_and_summary(tmp_path: Path) -> None:
    ran = run_example("demo.py", "--quick", cwd=tmp_path, CI="true", COLUMNS="200")
    said = ran.stdout
    assert ran.returncode == 0, said
    assert "\x1b" not in said  # no terminal, no colours or moving bars
    assert re.search(r"kill -9 \d+, after batch 5 of 15", said)
    assert re.search(r"penstock: worker \d \(pid \d+\) was killed by SIGKILL; it is replaced", said)
    assert "kill -9 of a worker: all 15 batches have the hashes of the undisturbed run" in said
    assert "stop at batch 7 and resume with 3 workers: all 15 batches have the hashes" in said
    # Torch's own, for comparison: mostly "RuntimeError: DataLoader worker", but it may be the worker's pipe that it misses first.
    assert re.search(r"when one of its workers is killed: \w+Error", " ".join(said.split())), said
    assert re.search(r"[\d.]+ times torch's throughput \(rounds: [\d.]+ to [\d.]+\)", said)
    assert "diagnosis  training waits" in said
    assert "Warning" not in said
    assert "Traceback" not in said

    out = tmp_path / "demo-out"
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    assert {event.get("cat") for event in events} >= {"task", "wait", "fault"}
    page = ET.fromstring((out / "summary.html").read_text("utf-8").partition("\n")[2])
    assert len(list(page.iter("{http://www.w3.org/2000/svg}svg"))) == 6
    assert json.loads((out / "state.json").read_text())["batches"] == 7


def test_a_batch_that_differs_fails_the_demo(part: Any) -> None:
    compare = part("demo").compare
    assert compare("run", ["a", "b"], ["a", "b"])[0]
    assert compare("run", ["a", "b"], ["a", "c"]) == (
        False,
        "run: only 1 of 2 batches are those of the undisturbed run; 2 came",
    )
    assert not compare("run", ["a", "b"], ["a"])[0]
    assert not compare("run", ["a"], ["a", "a"])[0]


def test_a_slower_loader_is_called_slower(part: Any) -> None:
    demo = part("demo")
    stats = {"stages_s": {"prepare": 9.0, "write": 1.0}}
    theirs, ours = (
        demo.Racer(name, None, rates=[rate] * 3) for name, rate in (("torch", 100.0), ("ours", 90.0))
    )
    said = demo.verdict(theirs, ours, stats)
    assert said.startswith("0.90 times torch's throughput (rounds: 0.90 to 0.90). Not faster here. 90% of")


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


def test_the_images_are_drawn_once(part: Any, tmp_path: Path) -> None:
    shapes = part("demo_shapes")
    assert list(shapes.make_images(tmp_path, 8)) == list(range(1, 9))
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert list(shapes.make_images(tmp_path, 8)) == [8]
    assert {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == before
    assert list(shapes.make_images(tmp_path, 3)) == [1, 2, 3]
    assert len(shapes.Shapes(tmp_path)) == 3
    image, label = shapes.Shapes(tmp_path)[2]
    assert (tuple(image.shape), label) == ((3, shapes.SEEN, shapes.SEEN), 2)


def test_the_quickstart_learns(tmp_path: Path) -> None:
    ran = run_example("quickstart.py", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"epoch 2: (9\d|100)\.\d% right", ran.stdout)
    assert "training waits" in ran.stdout


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
