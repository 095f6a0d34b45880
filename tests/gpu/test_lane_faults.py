"""The lane's faults on a GPU: training goes on, or stops with the one good error; never a hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("simplejpeg")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from penstock import DataLoader, ImageFolder
from penstock import transforms as T
from penstock.gpu.nvjpeg import LEFT_BYTES
from tests.gpu.test_lane import CHAINS, batches, photos

__all__ = ["photos"]
ROOT = Path(__file__).parents[2]


def test_without_memory_for_it_the_lane_yields_and_training_goes_on(photos: Path) -> None:
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (24 << 20)) / total)
    try:
        helped, iterator = batches(photos, CHAINS["W1"], "concurrent", deterministic=True)
        stats = iterator._mover.lane.stats()
        assert len(helped) == 3
        assert "no device memory is left for it" in stats["cannot"]
        assert stats["by_cpu"] == 48, "all of them, what workers had finished too"
        assert stats["packed"] > 0
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_memory_that_training_has_left_little_of_is_not_taken(photos: Path) -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    held = torch.empty(free - LEFT_BYTES - (8 << 20), dtype=torch.uint8, device="cuda")
    try:
        found, iterator = batches(photos, CHAINS["W1"], "concurrent", batch_size=4)
        stats = iterator._mover.lane.stats()
        assert len(found) == 12
        assert "no device memory is left for it" in stats["cannot"]
        assert stats["held_bytes"] == 0
        assert torch.cuda.mem_get_info()[0] >= LEFT_BYTES - (64 << 20), "modules and batches, no station"
    finally:
        del held
        torch.cuda.empty_cache()


def test_where_training_is_short_of_memory_what_is_free_for_a_moment_is_not_taken(photos: Path) -> None:
    """Each step needs three quarters of what there is in one piece, and then in another that the first has no room in."""
    torch.cuda.empty_cache()
    held = torch.empty(torch.cuda.mem_get_info()[0] - (8 << 30), dtype=torch.uint8, device="cuda")
    try:
        loader = DataLoader(
            ImageFolder(photos, T.Compose(CHAINS["W1"])),
            batch_size=4,
            num_workers=2,
            device="cuda",
            gpu_prep="concurrent",
        )
        iterator = iter(loader)
        for _ in iterator:
            for gib in (5, 6):
                torch.empty(gib << 30, dtype=torch.uint8, device="cuda")
            torch.cuda.empty_cache()  # all of it is free for a moment
        assert iterator._mover._places.most == 1
        assert "no device memory is left for it" in iterator._mover.lane.stats()["cannot"]
        assert iterator._mover.lane.stats()["held_bytes"] == 0
    finally:
        del held
        torch.cuda.empty_cache()


@pytest.mark.parametrize("at", [0.3, 0.6, 0.9])
def test_a_damaged_file_that_has_its_end_costs_at_most_its_batch(
    at: float, photos: Path, tmp_path: Path
) -> None:
    import shutil

    root = tmp_path / "some"
    shutil.copytree(photos, root)
    for path in list(root.rglob("*.jpg"))[::5]:
        data = bytearray(path.read_bytes())
        place = int(at * len(data))
        data[place : place + 40] = bytes(range(40))
        path.write_bytes(data)
    said, found = "JPEG", []
    try:
        found, _ = batches(root, CHAINS["W1"], "concurrent", deterministic=True)
    except Exception as exc:  # whatever the CPU's decoder says of such a file
        said = str(exc)
    assert any(word in said for word in ("JPEG", "decode", "corrupt", "Corrupt"))
    assert all(torch.isfinite(images).all() for images, _ in found)
    again, _ = batches(photos, CHAINS["W1"], "concurrent", deterministic=True)
    assert len(again) == 3, "and the device is well"


BROKEN = """
import sys, torch
from penstock import DataLoader, DeviceLost, ImageFolder, transforms as T
from penstock.kernels.run import Executor
run = Executor.run_rows
def broken(self, rows, batch, scratch=None):
    torch.zeros(4, device="cuda")[torch.tensor([1 << 20], device="cuda")].sum()
    return run(self, rows, batch, scratch)
Executor.run_rows = broken
chain = T.Compose([T.RandomResizedCrop(96), T.RandAugment(), T.ToDtype(torch.float32, scale=True)])
loader = DataLoader(ImageFolder(sys.argv[1], chain), batch_size=4, shuffle=True, seed=1, num_workers=2, device="cuda",
                    gpu_prep="concurrent", deterministic=True)
try:
    for images, _ in loader:
        pass
except DeviceLost as exc:
    print("lost:", exc)
"""


def test_a_device_assert_in_a_kernel_stops_training_with_one_error(photos: Path) -> None:
    run: Any = subprocess.run(
        [sys.executable, "-c", BROKEN, str(photos)], capture_output=True, text=True, timeout=100, cwd=ROOT, check=False
    )  # fmt: skip
    assert "lost: the GPU failed while it prepared samples" in run.stdout, run.stderr[-3000:]
    assert "gpu_prep='off'" in run.stdout
