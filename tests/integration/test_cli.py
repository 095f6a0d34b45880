"""`penstock run`, with real programs in real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
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


RANKED = """
import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        return index * index


dist.init_process_group("gloo")
total = torch.zeros(1)
for batch in DataLoader(Squares(), batch_size=4, num_workers=1):
    total += batch.sum()
    dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} saw {total.item():.3e}", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "endless.py").write_text(ENDLESS)
    (tmp_path / "ranked.py").write_text(RANKED)
    (tmp_path / "fails.py").write_text("def fall():\n    raise ValueError('down')\n\nfall()\n")
    (tmp_path / "idle.py").write_text("print('no data here')\n")
    return tmp_path


def penstock(folder: Path, *words: str, ranks: int = 0) -> subprocess.CompletedProcess[str]:
    launch = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        "--no-python",
        sys.executable,
    ]
    return subprocess.run(
        [sys.executable, *(launch if ranks else ()), "-m", "penstock", *words],
        cwd=folder,
        # Without buffers each write is seen by itself: lines of several ranks must not mix.
        env=os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=240,
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
    said = (
        r"^penstock: \[Squares, 4 a batch, 2 workers; 10 batches\] only \d batch(es)? of a steady run so far"
    )
    assert re.search(said, ended.stderr, re.MULTILINE)


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
    assert re.search(r"^with penstock: (training waits|Training does not wait)", ended.stdout, re.MULTILINE)


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


def test_who_watches_a_comparison_does_not_wait_for_torch() -> None:
    """Its memory and processor time would be taken from the programs that it compares."""
    code = "import sys, penstock.cli.both; sys.exit('torch' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(SRC)}, check=True, timeout=240
    )


def test_the_version_is_said_without_loading_torch(folder: Path) -> None:
    (folder / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    ended = penstock(folder, "--version")
    assert (ended.returncode, ended.stdout) == (0, "penstock 0.1.0\n")


def test_ranks_say_who_they_are_at_the_end(folder: Path) -> None:
    ended = penstock(folder, "run", "ranked.py", ranks=2)
    assert ended.returncode == 0, ended.stderr
    ours = [line for line in ended.stderr.splitlines() if line.startswith("penstock: ")]
    for rank in (0, 1):
        whole, loader = (line for line in ours if line.startswith(f"penstock: rank {rank}: "))
        assert f"penstock: rank {rank}: 60 batches, " in whole
        said = loader.partition(f"penstock: rank {rank}: [Squares, 4 a batch, 1 workers; 60 batches] ")[2]
        assert said.startswith(("training waits", "Training does not wait"))
    assert len(ours) == 4


def test_ranks_are_compared_in_one_table_with_a_process_group_in_both_runs(folder: Path) -> None:
    ended = penstock(folder, "run", "--compare", "ranked.py", ranks=2)
    assert ended.returncode == 0, ended.stderr
    heads = [line for line in ended.stdout.splitlines() if line.split() == ["torch", "penstock"]]
    assert len(heads) == 1, ended.stdout
    (batches,) = re.findall(r"^batches +(\d+) +(\d+)", ended.stdout, re.MULTILINE)
    assert batches == ("120", "120")
    assert (
        "2 ranks: samples/s, batches and memory are their sums, the waiting share their mean." in ended.stdout
    )


def read_page(path: Path) -> str:
    page = ET.fromstring(path.read_text("utf-8").partition("\n")[2])
    return " ".join("".join(page.itertext()).split())


def test_a_module_runs_too_is_ended_after_its_steps_and_has_its_page_where_it_was_asked_for(
    folder: Path,
) -> None:
    """Though the program changes its folder."""
    (folder / "sub").mkdir()
    (folder / "moves.py").write_text("import os\n\nos.chdir('sub')\n" + ENDLESS)
    ended = penstock(folder, "run", "--report", "page.html", "--steps", "40", "-m", "moves")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "the program's own output\n"
    assert "penstock: 40 batches, " in ended.stderr
    assert "penstock: page written to page.html" in ended.stderr
    said = read_page(folder / "page.html")
    for words in (
        "moves with penstock",
        "40batches delivered",
        "Timeline",
        "worker 0",
        "Waits",
        "processor",
    ):
        assert words in said, words
    assert not list((folder / "sub").iterdir())
    assert [path.name for path in folder.glob("*.json")] == [], "the trace is no one's to clean up"


def test_a_comparison_of_too_few_steps_gives_no_ratio_and_says_so_on_its_page_too(folder: Path) -> None:
    ended = penstock(folder, "run", "--compare", "--report", "page.html", "--steps", "6", "endless.py")
    assert ended.returncode == 0, ended.stderr
    (rates,) = (line for line in ended.stdout.splitlines() if line.startswith("samples/s"))
    assert "x" not in rates
    assert re.search(r"Too few steps for a ratio: 6, where \d+ would do \(--steps \d+\)", ended.stdout)
    said = read_page(folder / "page.html")
    for words in ("endless.py with penstock", "Side by side", "Too few steps for a ratio", "Timeline"):
        assert words in said, words


def test_a_page_is_made_of_a_trace_without_torch(folder: Path) -> None:
    program = (
        "from penstock import DataLoader\n\nlist(DataLoader(range(80), 4, num_workers=2, trace='run.json'))\n"
    )
    (folder / "traced.py").write_text(program)
    ran = penstock(folder, "run", "traced.py")
    assert ran.returncode == 0, ran.stderr
    (folder / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    made = penstock(folder, "report", "run.json", "-o", "page.html", "--title", "Ours")
    assert (made.returncode, made.stdout) == (0, "page written to page.html\n"), made.stderr
    said = read_page(folder / "page.html")
    for words in ("Ours", "raining waits", "20batches delivered", "Timeline", "worker 1", "processor"):
        assert words in said, words
