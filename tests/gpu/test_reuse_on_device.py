"""`Reuse(store="device")` on a GPU: batches are those of the store in memory, bit for bit, and nothing is allocated for them in the long run."""

from __future__ import annotations

import gc
import itertools
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("simplejpeg")
pytest.importorskip("triton")
pytest.importorskip("torchvision")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from penstock import DataLoader, ImageFolder, Reuse
from penstock import transforms as T
from penstock.gpu.nvjpeg import LEFT_BYTES
from tests.gpu.test_lane import CHAINS, photos

__all__ = ["photos"]
COPIES, BATCH = 8, 8
SPLITS = {"W1": 0, "W3": 1, "AutoAugment": 2, "jitter": 1}
RESIDENT = {"W1": 0.38, "W3": 0.38}
"""Of samples, at least; 0.6 of the others'. Two of three are there, but a slot is too small for a third of these whole photos."""


def loader_of(root: Path, name: str, store: str, **options: Any) -> DataLoader[Any]:
    dataset = ImageFolder(root, T.Compose(CHAINS[name]))
    dataset.samples *= COPIES
    dataset.length = len(dataset.samples)
    reuse = Reuse(times=3, split=SPLITS[name], store=store, max_bytes=options.pop("max_bytes", "256MiB"))
    keywords: dict[str, Any] = {
        "shuffle": True, "seed": 3, "num_workers": 2, "device": "cuda", "gpu_prep": "concurrent", "deterministic": True,
        "prefetch_batches": 4, "persistent_workers": True, **options,
    }  # fmt: skip
    return DataLoader(dataset, BATCH, reuse=reuse, **keywords)


def epochs(loader: DataLoader[Any], count: int) -> list[list[Any]]:
    return [[(images.cpu(), targets.cpu()) for images, targets in loader] for _ in range(count)]


def assert_same(found: list[list[Any]], others: list[list[Any]]) -> None:
    for epoch, (batches, theirs) in enumerate(zip(found, others, strict=True)):
        for number, ((images, targets), (other, labels)) in enumerate(zip(batches, theirs, strict=True)):
            assert torch.equal(targets, labels), (epoch, number)
            assert torch.equal(images, other), (epoch, number, (images - other).abs().max())


@pytest.mark.parametrize("name", SPLITS)
def test_batches_are_those_of_the_store_in_memory(name: str, photos: Path) -> None:
    on_device = loader_of(photos, name, "device")
    found, resident = [], [0]
    for _ in range(5):
        found += epochs(on_device, 1)
        resident.append(on_device.stats()["gpu"]["resident"])
    assert_same(found, epochs(loader_of(photos, name, "memory"), 5))
    gpu, kept = on_device.stats()["gpu"], on_device.stats()["reuse"]
    gains = [after - before for before, after in itertools.pairwise(resident)]
    assert gains[1] > 0, "what was kept in the first epoch, when there was memory"
    assert all(gain >= RESIDENT.get(name, 0.6) * 48 * COPIES for gain in gains[3:])
    assert kept["found"] >= sum(gains)
    assert 0 < kept["bytes"] <= kept["held_bytes"] <= kept["max_bytes"] == 256 << 20
    assert gpu["by_cpu"] == 0, "an epoch begins when the last has all that it looked up"


def test_the_lane_as_it_decides_trains_with_the_same_samples(photos: Path) -> None:
    """Not bit for bit: stations are ready some time, and until then workers finish all."""
    loader = loader_of(photos, "W3", "device", gpu_prep="auto", deterministic=None, dtype=torch.bfloat16)
    for _ in range(4):
        batches = epochs(loader, 1)[0]
        assert sum(len(images) for images, _ in batches) == 48 * COPIES
        assert all(torch.isfinite(images).all() and images.dtype is torch.bfloat16 for images, _ in batches)
    assert loader.stats()["gpu"]["resident"] > 0


@pytest.mark.parametrize("persistent", [False, True])
def test_nothing_is_allocated_in_the_long_run(photos: Path, persistent: bool) -> None:
    loader = loader_of(photos, "W3", "device", persistent_workers=persistent)
    epochs(loader, 4)
    before = torch.cuda.memory_stats()
    epochs(loader, 3)
    after = torch.cuda.memory_stats()
    for name in ("segment.all.allocated", "reserved_bytes.all.current"):
        assert after[name] == before[name], name


def test_without_memory_to_spare_training_goes_on(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = epochs(loader_of(photos, "W3", "memory"), 2)
    torch.cuda.empty_cache()
    held = torch.empty(
        torch.cuda.mem_get_info()[0] - LEFT_BYTES - (1 << 30), dtype=torch.uint8, device="cuda"
    )
    try:
        with caplog.at_level(logging.WARNING, "penstock"):
            loader = loader_of(photos, "W3", "device", max_bytes="64GiB")
            assert_same(epochs(loader, 2), expected)
    finally:
        del held
        torch.cuda.empty_cache()
    said = [record.getMessage() for record in caplog.records if "max_bytes" in record.getMessage()]
    assert len(said) == 1
    assert "nothing is kept there" in said[0]
    stats = loader.stats()
    assert stats["gpu"]["cannot"] == "", "stations had all that they need"
    assert stats["gpu"]["resident"] == stats["reuse"]["held_bytes"] == 0


def test_the_memory_goes_with_the_loader(photos: Path) -> None:
    """To the driver: torch would keep it for a stream that nobody has any more."""

    def taken() -> int:
        free, total = torch.cuda.mem_get_info()
        return total - free

    gc.collect()
    torch.cuda.empty_cache()
    loader = loader_of(photos, "W3", "device", max_bytes="4GiB")
    epochs(loader, 1)
    before = taken()
    del loader
    until = time.monotonic() + 20.0
    while before - taken() < 4 << 30 and time.monotonic() < until:
        gc.collect()
        time.sleep(0.1)
    assert before - taken() >= 4 << 30
