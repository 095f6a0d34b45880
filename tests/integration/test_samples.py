"""Datasets that call `self.transforms(image, target)`, torchvision's and users' own, with our ops, through the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten

from penstock import DataLoader
from penstock import transforms as v2
from tests.torchvision_here import torchvision

pytest.importorskip("cv2")
CHAIN = v2.Compose(
    [
        v2.RandomResizedCrop((32, 40), scale=(0.3, 1.0)),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.3, 0.3),
        v2.ClampBoundingBoxes(),
        v2.SanitizeBoundingBoxes(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
    ]
)


class Shapes(torch.utils.data.Dataset[Any]):
    """A user's own: boxes, a mask for each of them, and what else there is."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        from PIL import Image
        from torchvision import tv_tensors

        rng = np.random.default_rng(index)
        masks = np.zeros((3, 50, 60), np.uint8)
        corners = np.sort(rng.integers(0, 50, (3, 2, 2)), axis=1).reshape(3, 4)
        corners[:, 2:] += (5, 1)
        for mask, (left, top, right, bottom) in zip(masks, corners, strict=True):
            mask[top:bottom, left:right] = 1
        target = {
            "boxes": tv_tensors.BoundingBoxes(
                corners.astype(np.float32), format="XYXY", canvas_size=(50, 60)
            ),  # type: ignore[call-overload]
            "masks": tv_tensors.Mask(masks),
            "labels": torch.arange(3),
            "image_id": index,
        }
        pixels = np.repeat(masks.max(axis=0)[:, :, None] * np.uint8(200), 3, axis=2)
        return self.transforms(Image.fromarray(pixels), target)


class Coordinates(Shapes):
    """Every pixel says where it is."""

    def __getitem__(self, index: int) -> Any:
        place = torch.arange(50 * 60).reshape(50, 60)
        return self.transforms(torch.stack([place // 60, place % 60, place * 0]).byte(), index)


def as_tuples(batch: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*batch, strict=True))


def samples(dataset: Any, workers: int, **keywords: Any) -> list[Any]:
    loader: DataLoader[Any] = DataLoader(
        dataset, 2, shuffle=True, seed=4, num_workers=workers, collate_fn=as_tuples, **keywords
    )
    return [sample for images, targets in loader for sample in zip(images, targets, strict=True)]


def assert_same(mine: Any, other: Any) -> None:
    (values, spec), (others, same) = tree_flatten(mine), tree_flatten(other)
    assert spec == same
    for one, two in zip(values, others, strict=True):
        assert type(one) is type(two)
        assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
        assert getattr(one, "canvas_size", None) == getattr(two, "canvas_size", None)


def test_a_users_dataset_gives_the_same_samples_for_any_number_of_workers() -> None:
    torchvision()
    from torchvision import tv_tensors

    found = samples(Shapes(CHAIN), 0)
    for image, target in found:
        assert type(image) is tv_tensors.Image
        assert image.shape == (3, 32, 40)
        assert type(target["boxes"]) is tv_tensors.BoundingBoxes
        assert target["boxes"].canvas_size == (32, 40)
        assert type(target["masks"]) is tv_tensors.Mask
        assert len(target["boxes"]) == len(target["labels"]) == len(target["masks"])
    assert sorted(target["image_id"] for _, target in found) == list(range(9))
    assert_same(samples(Shapes(CHAIN), 2), found)


def test_torchvisions_chain_may_hold_ops_of_ours() -> None:
    torchvision()
    from torchvision.transforms import v2 as theirs

    chain = theirs.Compose([v2.RandomCrop(30), theirs.RandomIoUCrop(), v2.RandomCrop(20, pad_if_needed=True)])
    dataset = Shapes(theirs.Compose([chain, *CHAIN.transforms[-4:]]))
    assert_same(samples(dataset, 2), samples(dataset, 0))


def test_samples_of_a_batch_share_a_draw_where_asked() -> None:
    torchvision()
    chain = v2.Compose([v2.PerBatch(v2.RandomCrop(1)), v2.ToImage()])
    for images, _ in DataLoader(Coordinates(chain), 3, seed=2, num_workers=2):
        assert (images == images[0]).all()
    alone = {tuple(image.flatten().tolist()) for image, _ in samples(Coordinates(v2.RandomCrop(1)), 0)}
    assert len(alone) > 1


def voc(root: Path) -> Any:
    """Two photos in the layout of Pascal VOC."""
    from PIL import Image

    base = root / "VOCdevkit" / "VOC2012"
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (base / folder).mkdir(parents=True)
    for name, places in {"a": [(5, 6, 40, 30)], "b": [(1, 2, 20, 30), (30, 10, 59, 49)]}.items():
        Image.fromarray(np.random.default_rng(1).integers(0, 256, (50, 60, 3), dtype=np.uint8)).save(
            base / "JPEGImages" / f"{name}.jpg"
        )
        objects = "".join(
            f"<object><name>dog</name><bndbox><xmin>{x}</xmin><ymin>{y}</ymin><xmax>{right}</xmax>"
            f"<ymax>{bottom}</ymax></bndbox></object>"
            for x, y, right, bottom in places
        )
        (base / "Annotations" / f"{name}.xml").write_text(f"<annotation>{objects}</annotation>")
    (base / "ImageSets/Main/train.txt").write_text("a\nb\n")
    return root


def test_torchvisions_detection_dataset_takes_our_ops(tmp_path: Path) -> None:
    torchvision()
    from torchvision import datasets, tv_tensors

    dataset = datasets.wrap_dataset_for_transforms_v2(
        datasets.VOCDetection(str(voc(tmp_path)), image_set="train", transforms=CHAIN)
    )
    found = samples(dataset, 0)
    assert len(found) == 2
    for image, target in found:
        assert image.shape == (3, 32, 40)
        assert type(target["boxes"]) is tv_tensors.BoundingBoxes
        assert target["boxes"].dtype == torch.int64
        assert len(target["boxes"]) == len(target["labels"])
    assert_same(samples(dataset, 2), found)
    loader: DataLoader[Any] = DataLoader(dataset, 2, collate_fn=as_tuples)
    assert "not staged" in loader.explain()


def test_a_folder_of_torchvisions_takes_our_chain(tmp_path: Path) -> None:
    torchvision()
    from PIL import Image
    from torchvision import datasets

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (60, 50), (200, 10, 30)).save(tmp_path / name / "one.png")
    chain = v2.Compose([v2.RandomCrop(20), v2.RandomErasing(1.0), v2.ToImage(), v2.ToDtype(torch.float32)])
    loaders = [
        DataLoader(datasets.ImageFolder(str(tmp_path), chain), 2, seed=1, num_workers=workers)
        for workers in (0, 2)
    ]
    assert_same(*(list(loader) for loader in loaders))
