"""`penstock run`, with real programs in real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

PROGRAM = """
import json
import sys
import time

import torch.utils.data
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import DataLoader as ByItsOtherName


class Squares(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index * index


class Mine(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


if __name__ == "__main__":
    loader = Mine(Squares(), batch_size=4, num_workers=2)
    batches = [batch.tolist() for batch in loader]
    started_afresh = DataLoader(Squares(), batch_size=20, num_workers=1, multiprocessing_context="spawn")
    facts = {
        "argv": sys.argv,
        "path": sys.path[0],
        "flat": [value for batch in batches for value in batch],
        "spawned": [value for batch in started_afresh for value in batch.tolist()],
        "kind": DataLoader.__module__,
        "same": DataLoader is ByItsOtherName is torch.utils.data.DataLoader,
        "is_instance": isinstance(loader, torch.utils.data.DataLoader),
        "engine": loader.stats()["engine"] if hasattr(loader, "stats") else "torch",
    }
    print(json.dumps(facts))
    sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""

ENDLESS = """
import time

from torch.utils.data import DataLoader

print("the program's own output")
loader = DataLoader(list(range(64)), batch_size=8, num_workers=1, persistent_workers=True)
while True:
    for batch in loader:
        time.sleep(0.005)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "endless.py").write_text(ENDLESS)
    (tmp_path / "fails.py").write_text("def fall():\n    raise ValueError('down')\n\nfall()\n")
    (tmp_path / "idle.py").write_text("print('no data here')\n")
    return tmp_path


def penstock(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_program_runs_on_our_loader_without_an_edit(folder: Path) -> None:
    ended = penstock(folder, "run", "program.py", "3", "--steps", "7")
    assert ended.returncode == 3, ended.stderr
    squares = [index * index for index in range(40)]
    assert json.loads(ended.stdout) == {
        "argv": ["program.py", "3", "--steps", "7"],
        "path": str(folder),
        "flat": squares,
        "spawned": squares,
        "kind": "penstock.loader",
        "same": True,
        "is_instance": True,
        "engine": "workers",
    }
    assert re.search(
        r"^penstock: 12 batches, .* samples/s, waited \d+% of the time$", ended.stderr, re.MULTILINE
    )
    assert "penstock: [Squares, 4 a batch, 2 workers; 10 batches] training waits" in ended.stderr


def test_a_module_runs_too_and_steps_end_a_program_that_would_not_end(folder: Path) -> None:
    ended = penstock(folder, "run", "--steps", "25", "-m", "endless")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "the program's own output\n"
    assert "penstock: 25 batches, " in ended.stderr


def test_a_comparison_runs_it_both_ways_and_prints_a_table(folder: Path) -> None:
    ended = penstock(folder, "run", "--compare", "--steps", "40", "endless.py")
    assert ended.returncode == 0, ended.stderr
    assert "own output" not in ended.stdout
    head, *rows = ended.stdout.splitlines()
    assert head.split() == ["torch", "penstock"]
    found = {row[:18].strip(): re.findall(r"[\d.,]+", row[18:]) for row in rows[:5]}
    assert list(found) == ["samples/s", "waiting share", "peak memory (PSS)", "first batch after", "batches"]
    assert found["batches"] == ["40", "40"]
    assert all(float(value.replace(",", "")) > 20 for value in found["peak memory (PSS)"][:2]), (
        "MiB of two pythons"
    )
    assert "with penstock, training waits" in ended.stdout


def test_a_program_that_fails_keeps_its_traceback_and_a_comparison_says_with_which_loader(
    folder: Path,
) -> None:
    ended = penstock(folder, "run", "--compare", "fails.py")
    assert ended.returncode == 1
    assert "penstock: fails.py failed with penstock's loader (exit code 1):" in ended.stderr
    trace = ended.stderr[ended.stderr.index("Traceback") :].splitlines()
    assert trace[1] == '  File "fails.py", line 4, in <module>', "it begins in the program, not in the tool"
    assert trace[-1] == "ValueError: down"


def test_a_program_without_a_loader_ends_as_usual_and_cannot_be_compared(folder: Path) -> None:
    ended = penstock(folder, "run", "idle.py")
    assert (ended.returncode, ended.stdout) == (0, "no data here\n")
    assert "idle.py iterated no torch.utils.data.DataLoader" in ended.stderr
    ended = penstock(folder, "run", "--compare", "idle.py")
    assert ended.returncode == 1
    assert (
        "idle.py took no batch from a torch.utils.data.DataLoader: there is nothing to compare"
        in ended.stderr
    )


def test_the_version_is_said_without_loading_torch(folder: Path) -> None:
    (folder / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    ended = penstock(folder, "--version")
    assert (ended.returncode, ended.stdout) == (0, "penstock 0.1.0\n")
