"""Adopted chains in the GPU lane, with the kernels in Triton's interpreter: AugMix, and what is partly kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import DataLoader
from penstock.gpu.prep import looked, unsuited
from penstock.pipeline.adopt import adopted
from penstock.pipeline.adopted_images import AdoptedImages
from penstock.plan.renewal import Renewal
from penstock.reuse.images import Reused
from penstock.reuse.stores.memory import MemoryStore
from tests.lanes_on_cpu import batches_of, photos, prep_of
from tests.torchvision_here import torchvision, use_convolutions

__all__ = ["photos"]


@pytest.fixture(autouse=True)
def _has_torchvision() -> None:
    torchvision()
    use_convolutions()


def theirs(photos: Path, *ops: Any, after: tuple[Any, ...] = ()) -> Any:
    from torchvision import datasets
    from torchvision.transforms import v2

    tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    chain = v2.Compose([v2.RandomResizedCrop(48), *ops, *tail, *after])
    return datasets.ImageFolder(str(photos), chain)


def test_an_adopted_augmix_is_prepared_by_the_lane(photos: Path) -> None:
    from torchvision.transforms import v2

    dataset = theirs(photos, v2.AugMix(), v2.RandomHorizontalFlip())
    expected = list(DataLoader(dataset, batch_size=4, shuffle=True, seed=5, adopt=False))
    prep = prep_of(adopted(dataset), 1.0)
    for (images, targets), (plain, their_targets) in zip(batches_of(prep, 2), expected, strict=True):
        assert torch.equal(targets, their_targets)
        assert float((images - plain).abs().mean()) < 1 / 255
    assert prep.lane.packed == 12


def test_an_adopted_folder_that_is_reused_is_the_same_whoever_finishes_it(photos: Path) -> None:
    from torchvision.transforms import v2

    def reused() -> Reused:
        made = AdoptedImages(adopted(theirs(photos, v2.RandomRotation(20), v2.RandomHorizontalFlip())))  # type: ignore[arg-type]
        return Reused(made, 1, renewal, MemoryStore(renewal, 16 << 20))

    renewal = Renewal(12, 8, 3, seed=5)
    loader: Any = DataLoader(reused(), batch_size=4, shuffle=True, seed=5)
    prep = prep_of(reused(), 1.0)
    for _ in range(2):
        loader.set_epoch(0)
        for (images, targets), (plain, their_targets) in zip(batches_of(prep, 2), loader, strict=True):
            assert torch.equal(targets, their_targets)
            assert torch.equal(images, plain)


def test_what_follows_the_tensor_keeps_the_gpu_from_helping_with_reuse_too(photos: Path) -> None:
    from torch.utils.data import default_collate
    from torchvision.transforms import v2

    made: Any = adopted(theirs(photos, after=(v2.RandomErasing(),)))
    for dataset in (made, AdoptedImages(made)):
        assert unsuited(dataset, default_collate) == "RandomErasing: called as it is, in Python"
    assert not isinstance(looked(adopted(theirs(photos, v2.AugMix()))), str)
