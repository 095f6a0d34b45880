"""The GPU lane on a GPU: its samples are those of the CPU within the kernels' bounds, whatever the files are like."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("simplejpeg")
pytest.importorskip("triton")
pytest.importorskip("torchvision")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from torch.utils.data import RandomSampler

from penstock import DataLoader, ImageFolder
from penstock import transforms as T
from penstock.gpu.lane import COPIED_AT_ONCE
from tests.integration.test_device_cpu import copying, until
from tests.unit.test_jpeg_parts import jpeg_of, photo

TAIL = [T.ToDtype(torch.float32, scale=True), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
CROP = [T.RandomResizedCrop(96), T.RandomHorizontalFlip()]
CHAINS = {
    "W1": [*CROP, T.RandAugment(), *TAIL],
    "W2": [*CROP, *TAIL],
    "W3": [T.RandAugment(), *CROP, *TAIL],
    "AutoAugment": [*CROP, T.AutoAugment(), *TAIL],
    "jitter": [*CROP, T.ColorJitter(0.4, 0.4, 0.4, 0.1), *TAIL],
}
LEVEL = 1 / 255 / 0.224


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for number in range(48):
        path = root / f"{number % 4}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"progressive": True} if number % 16 == 5 else {}
        path.write_bytes(jpeg_of(photo(180 + 5 * number, 220, number), quality=85, **options))
    return root


def batches(
    root: Path, chain: list[Any], mode: str, batch_size: int = 16, **options: Any
) -> tuple[list[Any], Any]:
    loader = DataLoader(
        ImageFolder(root, T.Compose(chain)),
        batch_size=batch_size,
        shuffle=True,
        seed=3,
        num_workers=2,
        device="cuda",
        gpu_prep=mode,
        **options,
    )
    iterator = iter(loader)
    found = list(iterator)
    return found, iterator


@pytest.mark.parametrize("name", CHAINS)
def test_lane_and_workers_make_the_same_samples(name: str, photos: Path) -> None:
    plain, _ = batches(photos, CHAINS[name], "off")
    helped, iterator = batches(photos, CHAINS[name], "concurrent", deterministic=True)
    lane = iterator._mover.lane
    assert 8 <= lane.packed <= 40, "half of them, more or less"
    for (images, targets), (theirs, their_targets) in zip(helped, plain, strict=True):
        assert torch.equal(targets, their_targets)
        difference = (images - theirs).abs() / LEVEL
        # nvJPEG's transform and filters are not libjpeg's: most pixels are within a few levels, edges further.
        assert difference.mean() < 3.0
        rows = difference.flatten(1).mean(1)
        assert (rows == 0).sum() >= 2, "what workers made is the same"


def test_the_layout_and_dtype_are_those_asked_for(photos: Path) -> None:
    found, _ = batches(
        photos, CHAINS["W1"], "concurrent", dtype=torch.bfloat16, memory_format=torch.channels_last
    )
    assert found[0][0].dtype is torch.bfloat16
    assert found[0][0].is_contiguous(memory_format=torch.channels_last)
    assert torch.isfinite(found[0][0]).all()


def test_a_batch_of_pixels_takes_little_memory_beside_its_own(photos: Path) -> None:
    """Slots are several times as large as their pixels: all of them at once would take memory from training."""
    dataset = ImageFolder(photos, T.Compose(CHAINS["W1"]))
    some = RandomSampler(dataset, replacement=True, num_samples=960)
    loader = DataLoader(
        dataset, batch_size=960, sampler=some, num_workers=2, device="cuda", gpu_prep="concurrent"
    )
    gc.collect()
    assert until(lambda: not copying()), "loaders that were dropped let go of their batches a little later"
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    images, _ = next(iter(loader))
    beside = torch.cuda.max_memory_allocated() - before - images.nbytes
    assert 0 < beside < COPIED_AT_ONCE + (8 << 20)


def test_a_corrupt_file_among_good_ones_is_the_one_error(photos: Path, tmp_path: Path) -> None:
    import shutil

    root = tmp_path / "some"
    shutil.copytree(photos, root)
    data = (root / "0" / "0.jpg").read_bytes()
    (root / "0" / "0.jpg").write_bytes(data[: len(data) // 2])
    with pytest.raises(Exception, match=r"JPEG|decode|cut off"):
        batches(root, CHAINS["W1"], "concurrent", deterministic=True)
