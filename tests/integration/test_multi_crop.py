"""Several crops of one image, as DINO's, through the loader."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from penstock import ConfigError, DataLoader, StagedDataset
from penstock import transforms as T
from penstock.pipeline.chain import Chain
from penstock.transforms.views import MultiCrop

pytest.importorskip("cv2")
GLOBAL, LOCAL = T.RandomResizedCrop(48, scale=(0.4, 1.0)), T.RandomResizedCrop(24, scale=(0.05, 0.4))
DINO = [
    T.Resize(72),
    MultiCrop([([GLOBAL, T.RandomHorizontalFlip()], 2), (LOCAL, 8)]),
    T.ColorJitter(0.4, 0.4, 0.2, 0.1),
    T.ToImage(),
    T.ToDtype(torch.float32, scale=True),
    T.Normalize([0.5] * 3, [0.25] * 3),
]
IMAGE = np.random.default_rng(4).integers(0, 256, (80, 100, 3), dtype=np.uint8)


def read(index: int) -> tuple[bytes, int]:
    from PIL import Image

    out = io.BytesIO()
    pixels = np.random.default_rng(index).integers(0, 256, (9, 11, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((110, 90)).save(out, "PNG")
    return out.getvalue(), index


def batches(workers: int) -> list[Any]:
    loader: DataLoader[Any] = DataLoader(
        StagedDataset(read, DINO, 10), 4, shuffle=True, seed=3, num_workers=workers
    )
    return [batch for _ in range(2) for batch in loader]


def test_two_large_and_eight_small_crops_are_the_same_for_any_number_of_workers() -> None:
    found = batches(0)
    crops, numbers = found[0]
    assert [tuple(crop.shape) for crop in crops] == [(4, 3, 48, 48)] * 2 + [(4, 3, 24, 24)] * 8
    assert crops[0].dtype == torch.float32
    others = batches(2)
    assert len(found) == len(others) == 6
    for (mine, targets), (same, same_targets) in zip(found, others, strict=True):
        assert torch.equal(targets, same_targets)
        assert all(torch.equal(x, y) for x, y in zip(mine, same, strict=True))
    assert len(numbers) == 4


def test_every_crop_has_draws_of_its_own() -> None:
    crops = Chain.of(DINO).run(IMAGE, 7)
    assert isinstance(crops, tuple)
    assert not torch.equal(crops[0], crops[1])
    assert len({crop.numpy().tobytes() for crop in crops}) == 10
    again = Chain.of(DINO).run(IMAGE, 7)
    assert all(torch.equal(x, y) for x, y in zip(crops, again, strict=True))
    assert not torch.equal(Chain.of(DINO).run(IMAGE, 8)[0], crops[0])


def test_adding_a_crop_at_the_end_changes_none_before_it() -> None:
    few, more = (Chain.of(MultiCrop([(GLOBAL, 2), (LOCAL, count)])).run(IMAGE, 5) for count in (3, 4))
    assert len(more) == len(few) + 1 == 6
    assert all(torch.equal(x, y) for x, y in zip(few, more[:5], strict=True))


def test_a_crop_is_what_its_chain_alone_would_give() -> None:
    chain = Chain.of(
        [T.Resize((60, 70)), MultiCrop([(T.CenterCrop(20), 1), (T.Resize((9, 9)), 1)]), T.ToTensor()]
    )
    crop, whole = chain.run(IMAGE, 0)
    assert torch.equal(crop, Chain.of([T.Resize((60, 70)), T.CenterCrop(20), T.ToTensor()]).run(IMAGE, 0))
    assert torch.equal(whole, Chain.of([T.Resize((60, 70)), T.Resize((9, 9)), T.ToTensor()]).run(IMAGE, 0))


def test_a_function_that_writes_into_its_image_does_not_reach_the_other_crops() -> None:
    def blackened(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        image[:] = 0
        return image

    before = IMAGE.copy()
    chain = Chain.of(MultiCrop([(T.RandomApply([T.Lambda(blackened)], p=1.0), 2), ([], 1)]))
    black, _, whole = chain.run(IMAGE, 0)
    assert not black.any()
    np.testing.assert_array_equal(whole.permute(1, 2, 0).numpy(), before)


def test_identity_knows_the_crops() -> None:
    one, other = Chain.of(MultiCrop([(GLOBAL, 2)])), Chain.of(MultiCrop([(GLOBAL, 3)]))
    assert one.identity != other.identity
    assert one.identity == Chain.of([MultiCrop([(GLOBAL, 1), ([GLOBAL], 1)])]).identity
    assert one.is_random
    assert not Chain.of(MultiCrop([(T.CenterCrop(8), 2)])).is_random


def test_what_makes_no_sense_is_refused() -> None:
    for crops in ([], [(GLOBAL, 0)], [GLOBAL], [(GLOBAL,)]):
        with pytest.raises(ConfigError):
            MultiCrop(crops)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="within another op"):
        Chain.of(T.RandomApply([MultiCrop([(GLOBAL, 2)])], p=1.0)).run(IMAGE, 0)
    with pytest.raises(ConfigError, match="masks and boxes"):
        Chain.of(DINO).run_with(IMAGE, 0, boxes=[[1, 2, 3, 4]])
