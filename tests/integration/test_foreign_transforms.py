"""Transforms of others within a chain of ours: steps in Python, called as they are meant to be, with the same draws for everyone.

Albumentations itself is used where it is installed; otherwise a class that is called as its Compose is, from a module of its name.
"""

from __future__ import annotations

import functools
import io
import os
import random
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from penstock import AnnotatedDataset, ConfigError, DataLoader, StagedDataset
from penstock import transforms as T
from penstock.pipeline.chain import Chain
from tests.integration.noisy import epoch
from tests.torchvision_here import torchvision

pytest.importorskip("cv2")
IMAGE = np.random.default_rng(1).integers(0, 256, (40, 50, 3), dtype=np.uint8)


class Crop:
    """What Albumentations' Compose is to those who call it: keywords in, a dict out, generators of its own."""

    def __init__(self, size: int, normalized: bool = False) -> None:
        self.size, self.normalized = size, normalized
        self.set_random_seed(None)

    def set_random_seed(self, seed: int | None) -> None:
        self.py_random = random.Random(seed)

    def __call__(self, *args: Any, **data: Any) -> dict[str, Any]:
        if args:
            raise KeyError(
                "You have to pass data to augmentations as named arguments, for example: aug(image=image)"
            )
        image = data["image"]
        assert image.flags.c_contiguous
        top, left = (self.py_random.randrange(side - self.size + 1) for side in image.shape[:2])
        found = image[top : top + self.size, left : left + self.size]
        return {
            "image": torch.from_numpy(found / np.float32(255)).permute(2, 0, 1) if self.normalized else found
        }

    def __repr__(self) -> str:
        return f"Compose([Crop({self.size}), {self.normalized}])"


Crop.__name__ = "Compose"
Crop.__module__ = "albumentations.core.composition"


def real(size: int, normalized: bool = False) -> Any:
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
    albumentations = pytest.importorskip("albumentations")
    parts = [albumentations.RandomCrop(size, size)]
    if normalized:
        parts += [albumentations.Normalize(mean=(0, 0, 0), std=(1, 1, 1)), albumentations.ToTensorV2()]
    return albumentations.Compose(parts)


both = pytest.mark.parametrize("make", [Crop, real], ids=["stand-in", "albumentations"])


@functools.cache
def read(index: int) -> tuple[bytes, int]:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.roll(IMAGE, index, 1)).save(out, "PNG")
    return out.getvalue(), index


def loader(chain: Any, workers: int = 0, **settings: Any) -> DataLoader[Any]:
    return DataLoader(
        StagedDataset(read, chain, 11), 4, shuffle=True, seed=2, num_workers=workers, **settings
    )


@both
def test_it_is_one_step_of_the_chain(make: Any) -> None:
    chain = [T.RandomHorizontalFlip(1.0), make(16), T.RandomVerticalFlip(1.0), T.ToTensor()]
    image = Chain.of(chain).run(IMAGE, 3)
    assert image.shape == (3, 16, 16)
    assert image.dtype == torch.float32
    pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()[::-1, ::-1]
    places = np.lib.stride_tricks.sliding_window_view(IMAGE, (16, 16, 3))[:, :, 0]
    assert (places == pixels).all(axis=(2, 3, 4)).any(), "a part of the image, flipped before and after"


@both
@pytest.mark.parametrize("normalized", [False, True], ids=["pixels", "tensors"])
@pytest.mark.parametrize(
    "how", [{"workers": 2, "task_size": 1}, {"workers": 3}], ids=["small tasks", "3 workers"]
)
def test_draws_do_not_depend_on_who_prepares_a_sample(
    make: Any, normalized: bool, how: dict[str, Any]
) -> None:
    chain = [T.RandomCrop(30), make(16, normalized)]
    one, other = loader(chain), loader(chain, **how)
    found = [epoch(one) for _ in range(2)]
    assert [epoch(other) for _ in range(2)] == found
    assert found[0] != found[1]


@both
def test_samples_of_one_image_are_drawn_apart(make: Any) -> None:
    dataset = StagedDataset(lambda _: read(0), make(16), 12)
    images = torch.cat([images for images, _ in DataLoader(dataset, 4, seed=1)])
    assert len({image.numpy().tobytes() for image in images}) > 8


@both
def test_what_it_makes_is_the_sample_where_it_comes_last(make: Any) -> None:
    dataset = StagedDataset(read, make(16, True), 11)
    image, target = dataset[0]
    assert isinstance(image, torch.Tensor)
    assert (image.dtype, tuple(image.shape), target) == (torch.float32, (3, 16, 16), 0)
    with pytest.raises(ConfigError, match=r"gave torch\.float32 of shape.*Put it last"):
        Chain.of([make(16, True), T.RandomHorizontalFlip(1.0)]).run(IMAGE, 0)
    with pytest.raises(ConfigError, match="Put it last"):
        Chain.of([make(16, True), T.ToTensor()]).run(IMAGE, 0)


@both
def test_it_says_what_it_is(make: Any) -> None:
    one, other = Chain.of(make(16)), Chain.of(make(17))
    assert one.identity == Chain.of([make(16)]).identity
    assert one.identity != other.identity
    assert one.is_random
    text = loader([T.RandomCrop(20), make(16), T.ToTensor()]).explain()
    line = next(line for line in text.splitlines() if "albumentations" in line)
    assert line.startswith("  Compose of albumentations ")
    assert "cpu, Python only" in line
    assert line.endswith("(not an op of ours: it is called as it is)")
    assert "to tensor" in text
    assert "to tensor" not in loader(make(16, True)).explain()


@both
def test_it_has_crops_of_its_own_within_several(make: Any) -> None:
    crops = Chain.of(T.MultiCrop([(make(16), 2), (T.CenterCrop(9), 1)])).run(IMAGE, 5)
    assert [tuple(crop.shape) for crop in crops] == [(3, 16, 16), (3, 16, 16), (3, 9, 9)]
    assert not torch.equal(crops[0], crops[1])


@both
def test_it_cannot_move_masks_unseen(make: Any) -> None:
    dataset = AnnotatedDataset(lambda index: (read(index)[0], {"boxes": [[1, 2, 9, 9]]}), make(16), 3)
    with pytest.raises(ConfigError, match="unseen"):
        dataset[0]


def test_functions_and_torchvisions_transforms_are_called_too() -> None:
    torchvision()
    from torchvision.transforms import v2

    chain = Chain.of([np.flipud, v2.RandomInvert(p=1.0), v2.Grayscale(1)])
    grey = 255 - Chain.of(T.Grayscale()).run(IMAGE, 0).numpy()
    found = chain.run(IMAGE, 0)
    assert found.shape == (1, 40, 50)
    assert np.abs(found.numpy()[:, ::-1].astype(int) - grey).max() <= 1
    assert isinstance(Chain.of([v2.ToImage()]).run(IMAGE, 0), torch.Tensor)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(ConfigError, match="other callables"):
        Chain.of([T.RandomCrop(8), 7])


def test_it_need_not_be_installed() -> None:
    """A module of that name is not imported for it: who has such a transform has it already."""
    before = {name: module for name, module in sys.modules.items() if isinstance(module, ModuleType)}
    Chain.of(Crop(8)).run(IMAGE, 0)
    assert not {name for name in set(sys.modules) - set(before) if name.startswith("albumentations")}
