"""The documents hold: every Python example runs, every link and every benchmark command leads somewhere, lines stay short.

Each example runs in a namespace of its own, with the names and files that its page takes for granted (below); those that change other packages
run in a process of their own. An example that cannot run here has a comment `<!-- not run: reason -->` before it, and is compiled. Where there is
no CUDA, the CPU is the device.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [
    *PAGES,
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")),
]
BLOCK = re.compile(r"(?:^<!-- not run: (.*?) -->\n)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LONGEST = 160

DATA = """
import pathlib, wave
import numpy as np, torch
import penstock
from penstock import DataLoader

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 600
    def __getitem__(self, key):
        return torch.full((4,), float(key))

dataset, model = Samples(), torch.nn.Linear(4, 1)
loader = DataLoader(dataset, 256)
"""
PHOTOS = """
from PIL import Image
for number in range(12):
    folder = pathlib.Path("photos", "ab"[number % 2])
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (64, 80, 3), np.uint8)
    Image.fromarray(pixels).save(folder / f"{number}.jpg")
from penstock import AudioFolder, ImageFolder, Reuse
from penstock import transforms as T
from penstock.transforms import LogMel, PadOrCut, SpecAugment
augment = [T.RandAugment(), T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
chain = T.Compose([*augment, T.ToImage(), T.ToDtype(torch.float32, scale=True)])
for number in range(4):
    pathlib.Path("speech", "yes").mkdir(parents=True, exist_ok=True)
    with wave.open(f"speech/yes/{number}.wav", "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(np.random.default_rng(number).integers(-999, 999, 24_000, np.int16).tobytes())
"""
TRAINERS = """
from accelerate import Accelerator
LightningModule = torch.nn.Module  # tests/integration/trainers has the real one
accelerator, optimizer = Accelerator(cpu=True), torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(dataset, 256, shuffle=True, seed=0)
"""
MADE = """
loader = Model().train_dataloader() if "Model" in globals() else loader
"""
A_BATCH = """
if "loader" in globals() and hasattr(loader, "state_dict"):
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(loader.state_dict())
    if hasattr(iterator, "close"):
        iterator.close()
"""
NODE_ENDS = """
import gc
from tests.cache_jobs import named, until
iterator = loader = None
gc.collect()
until(lambda: not named("penstock node"), within_s=30, why="the node process does not end with the loader")
"""
ALL_OF_THEM = """
assert "in loader" not in BLOCK or loader.stats()["samples"] == 600
"""


class Around(NamedTuple):
    """What a page's examples take for granted, and what they must have done."""

    before: str = DATA
    after: str = A_BATCH
    needs: tuple[str, ...] = ()
    fresh: bool = False
    """Whether it needs a process of its own."""


AROUND = {
    "README.md": Around(after=ALL_OF_THEM + A_BATCH),
    "cache.md": Around(before=DATA + PHOTOS, after=A_BATCH + NODE_ENDS, needs=("PIL",)),
    "ranks.md": Around(needs=("PIL",)),
    "reuse.md": Around(before=DATA + PHOTOS, needs=("PIL", "soundfile")),
    "transforms.md": Around(before=DATA + PHOTOS, needs=("PIL", "soundfile")),
    "integrations.md": Around(
        before=DATA + TRAINERS, after=MADE + A_BATCH, needs=("accelerate",), fresh=True
    ),
}
FRESH = """
import json, sys
for parts in json.loads(sys.stdin.read()):
    names = {"__name__": "__main__"}
    for part in parts:
        exec(compile(part, part, "exec"), names)
"""


def examples(page: Path) -> list[tuple[str, str]]:
    """Why it is not run, or nothing; and the code."""
    return BLOCK.findall(page.read_text("utf-8"))


def with_examples() -> list[Path]:
    return [page for page in PAGES if any(not reason for reason, _ in examples(page))]


@pytest.mark.parametrize("page", with_examples(), ids=lambda page: page.name)
def test_a_pages_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    around = AROUND.get(page.name, Around())
    for package in around.needs:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    runs = []
    for reason, code in examples(page):
        text = code.replace("/scratch/kept", str(tmp_path / "kept"))
        if not torch.cuda.is_available():
            text = text.replace('device="cuda"', 'device="cpu"')
        if not reason:
            runs.append([around.before, f"BLOCK = {code!r}", text, around.after])
    if not around.fresh:
        for parts in runs:
            names: dict[str, Any] = {"__name__": __name__}
            for part in parts:
                exec(compile(part, f"{page.name}:\n{part}", "exec"), names)
        return
    done = subprocess.run(
        [sys.executable, "-c", FRESH],
        input=json.dumps(runs),
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


def test_examples_that_are_not_run_say_why_and_compile() -> None:
    for page in PAGES:
        for reason, code in examples(page):
            compile(code, page.name, "exec")
            assert reason == reason.strip()
        text = page.read_text("utf-8")
        assert text.count("```python\n") == len(examples(page)), page.name
        assert text.count("<!-- not run") == sum(bool(reason) for reason, _ in examples(page)), page.name
    assert {"README.md", "api.md", "cli.md", "reuse.md", "transforms.md"} <= {
        page.name for page in with_examples()
    }


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them, and of those that are written out."""
    text = page.read_text("utf-8")
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
    return made | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_lines_are_short(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {target}"
    long = [line for line in text.splitlines() if len(line) > LONGEST and not line.startswith("|")]
    assert not long, long


def code_of(script: Path) -> str:
    """Of a benchmark and of the helper modules that it imports, where shared options are defined."""
    code = script.read_text("utf-8")
    helpers = re.findall(r"^(?:from|import) (_[a-z][a-z_]*)", code, re.MULTILINE)
    return code + "".join((script.parent / f"{name}.py").read_text("utf-8") for name in helpers)


def test_commands_of_benchmarks_are_known() -> None:
    """A table's command can be typed: the script is there, and so are its options."""
    found = 0
    for page in DOCUMENTS:
        for name, options in re.findall(r"scripts/bench ([a-z_]+)([^`#\n]*)", page.read_text("utf-8")):
            script = ROOT / "benchmarks" / f"{name}.py"
            assert script.exists(), f"{page.name}: scripts/bench {name}"
            code = code_of(script)
            for option in re.findall(r"--[a-z][a-z-]*", options):
                assert f'"{option}"' in code, f"{page.name}: scripts/bench {name} {option}"
            found += 1
    assert found > 10
