"""`penstock profile`, with real programs in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.measure.metric_store import MetricStore

SRC = Path(__file__).parents[2] / "src"
TRAINING = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        until = time.process_time() + 0.002
        while time.process_time() < until:
            pass
        return torch.zeros(3)

print("the program's own output")
loader = DataLoader(Slow(), batch_size=8, num_workers={workers})
validation = DataLoader(Slow(), batch_size=8)
steps = 0
next(iter(validation))
for epoch in range({epochs}):
    for batch in loader:
        steps += 1
        {body}
open("ended", "w").write(str(steps))
"""


RANKED = """
import time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
total = torch.zeros(1)
for epoch in range(100):
    for batch in DataLoader(list(range(64)), batch_size=8, num_workers=1):
        time.sleep(0.002 * (1 + dist.get_rank()))
        dist.all_reduce(total)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    def write(name: str, **parts: object) -> None:
        given = {"workers": 1, "epochs": 100, "body": "pass", **parts}
        text = TRAINING
        for key, value in given.items():
            text = text.replace("{" + key + "}", str(value))
        (tmp_path / name).write_text(text)

    write("train.py")
    write("inline.py", workers=0)
    write("short.py", epochs=1, body="if steps == 3: break")
    write("raises.py", body="assert steps < 7, 'enough of this'")
    (tmp_path / "ranked.py").write_text(RANKED)
    (tmp_path / "idle.py").write_text("print('no data here')\n")
    return tmp_path


def profile(folder: Path, *words: str, ranks: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(SRC),
        "PENSTOCK_CACHE_DIR": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--no-python"]
    launch += [sys.executable]
    return subprocess.run(
        [sys.executable, *(launch if ranks else ()), "-m", "penstock", "profile", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_program_is_measured_and_ended_and_its_rates_are_stored(folder: Path) -> None:
    done = profile(folder, "--seconds", "0.5", "--model", "tiny", "train.py", "--an-option", "of its own")
    assert done.returncode == 0, done.stderr
    assert "training alone" in done.stdout
    assert "1 local worker " in done.stdout
    assert "would give about" in done.stdout
    assert "the program's own output" not in done.stdout
    assert "measuring local workers alone" in done.stderr
    assert not (folder / "ended").exists()
    (row,) = MetricStore(folder / "cache").rows()
    assert (row.workload["model"], row.workload["workers"], row.how) == ("tiny", 1, "active")
    assert row.metrics is not None
    assert row.metrics.training > row.metrics.local

    shown = profile(folder, "--list").stdout
    assert row.key[:8] in shown
    assert "__main__.Slow of 64" in shown
    assert profile(folder, "--forget", row.key[:8]).stdout == "forgot 1 row\n"
    assert profile(folder, "--list").stdout.startswith("nothing is stored in ")


def test_a_program_without_workers_is_measured_with_one(folder: Path) -> None:
    done = profile(folder, "--seconds", "0.4", "inline.py")
    assert done.returncode == 0, done.stderr
    assert "num_workers=0: measured with one worker" in done.stdout


def test_ranks_take_equally_many_steps(folder: Path) -> None:
    """They wait for each other in each step: another number would be a hang."""
    done = profile(folder, "--seconds", "0.4", "ranked.py", ranks=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("training alone") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["idle.py"], "idle.py took no batch from a torch.utils.data.DataLoader"),
        (["short.py"], "short.py ended after 4 batches, before it was measured"),
        (["--seconds", "0.4", "raises.py"], "AssertionError: enough of this"),
        (["absent.py"], "there is no script 'absent.py'"),
        ([], "give a script, --list or --forget"),
        (["--forget", "77"], "no stored key begins with '77'"),
        (["--seconds", "0", "train.py"], "must be above 0"),
    ],
)
def test_what_cannot_be_profiled_is_said(folder: Path, words: list[str], says: str) -> None:
    done = profile(folder, *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr.replace(says, "") or words[-1:] == ["raises.py"]
    assert not (folder / "cache").exists()
