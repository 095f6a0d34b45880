"""Masks and boxes beside torchvision's, moved by the same steps, and beside the image that they belong to."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from penstock import ConfigError, DataLoader
from penstock import transforms as T
from penstock.pipeline.annotated import AnnotatedDataset
from penstock.pipeline.chain import Chain
from penstock.transforms.augment import steps_of
from penstock.transforms.cpu import execute
from penstock.transforms.steps import Code, Program, Step
from penstock.transforms.targets import Targets, follow
from tests.torchvision_here import torchvision

pytest.importorskip("cv2")
SIZE = (61, 83)
RNG = np.random.default_rng(5)
MASKS = {
    "uint8": RNG.integers(0, 256, SIZE, dtype=np.uint8),
    # torchvision moves masks by way of float32: beyond 24 bits it loses some, and we do not
    "int64": RNG.integers(0, 1 << 24, SIZE, dtype=np.int64),
    "one per object": RNG.integers(0, 2, (4, *SIZE), dtype=np.uint8),
}
BOXES = np.array(
    [[10, 5, 30, 45], [0, 0, 83, 61], [70.5, 2.25, 80.75, 60], [40, 30, 41, 31], [1, 55, 20, 61]], np.float32
)
each_mask = pytest.mark.parametrize("name", MASKS)


def moved_mask(program: Program, name: str) -> NDArray[Any]:
    found = follow(program, Targets.of(SIZE, MASKS[name]), SIZE).masks
    assert found is not None
    return found


def moved_boxes(program: Program, boxes: NDArray[Any] = BOXES) -> NDArray[np.float32]:
    found = follow(program, Targets.of(SIZE, boxes=boxes), SIZE).boxes
    assert found is not None
    return found


def their_mask(function: Any, name: str) -> NDArray[Any]:
    torchvision()
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import functional

    found: NDArray[Any] = function(functional, tv_tensors.Mask(torch.from_numpy(MASKS[name]))).numpy()
    return found


def their_boxes(function: Any, boxes: NDArray[Any] = BOXES) -> NDArray[np.float32]:
    """Clamped and sanitised by torchvision."""
    torchvision()
    from torchvision import tv_tensors
    from torchvision.transforms import v2
    from torchvision.transforms.v2 import functional

    given = tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=SIZE)  # type: ignore[call-overload]
    moved = v2.ClampBoundingBoxes()(function(functional, given))
    found: NDArray[np.float32] = v2.SanitizeBoundingBoxes(labels_getter=None)({"boxes": moved})[
        "boxes"
    ].numpy()
    return found


STEPS: dict[str, tuple[Program, Any]] = {
    "crop": ([Step(Code.CROP, (3, 12, 41, 39))], lambda F, x: F.crop(x, 3, 12, 41, 39)),
    "crop beyond": ([Step(Code.CROP, (-4, 5, 70, 90))], lambda F, x: F.crop(x, -4, 5, 70, 90)),
    "crop of a corner": ([Step(Code.CROP, (31, 41, 30, 42))], lambda F, x: F.crop(x, 31, 41, 30, 42)),
    "flip": ([Step(Code.FLIP_H)], lambda F, x: F.horizontal_flip(x)),
    "upside down": ([Step(Code.FLIP_V)], lambda F, x: F.vertical_flip(x)),
    "pad": ([Step(Code.PAD, (3, 2, 1, 4, 0, "constant"))], lambda F, x: F.pad(x, [3, 2, 1, 4])),
    **{
        f"resize to {size}": (
            [Step(Code.RESIZE, (*size, 2, True))],
            lambda F, x, size=size: F.resize(x, list(size)),
        )
        for size in ((30, 40), (122, 166), (61, 83), (7, 200), (33, 59), (224, 224), (1, 1))
    },
}


@each_mask
@pytest.mark.parametrize("case", STEPS)
def test_masks_are_moved_exactly_as_torchvision_moves_them(case: str, name: str) -> None:
    program, function = STEPS[case]
    np.testing.assert_array_equal(moved_mask(program, name), their_mask(function, name))


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_masks_are_padded_as_the_image_is(mode: str) -> None:
    mine = moved_mask([Step(Code.PAD, (3, 2, 1, 4, 0, mode))], "uint8")
    np.testing.assert_array_equal(mine, their_mask(lambda F, x: F.pad(x, [3, 2, 1, 4], 0, mode), "uint8"))


@pytest.mark.parametrize("case", STEPS)
def test_boxes_are_torchvisions(case: str) -> None:
    program, function = STEPS[case]
    np.testing.assert_allclose(moved_boxes(program), their_boxes(function), atol=1e-3)


@pytest.mark.parametrize("before", [3, 7, 61, 83, 224, 500, 1023])
def test_nearest_is_torchs_for_any_pair_of_sizes(before: int) -> None:
    from penstock.transforms.targets import nearest

    line = torch.arange(before, dtype=torch.float32)[None, None]
    for after in range(1, 1100, 7):
        expected = torch.nn.functional.interpolate(line, size=after, mode="nearest")[0, 0].numpy()
        np.testing.assert_array_equal(nearest(before, after), expected)


TURNS = {
    "ShearX": (-0.3, 0.09, 0.3), "ShearY": (-0.99, 0.05, 0.3), "TranslateX": (-20.0, 3.9), "TranslateY": (-3.9, 11.0),
    "Rotate": (-135.0, -30.0, 9.0, 45.0, 90.0),
}  # fmt: skip


def turned(F: Any, x: Any, op: str, level: float) -> Any:
    """As torchvision's policies call its kernels."""
    import math

    shear = math.degrees(math.atan(level)) if op.startswith("Shear") else 0.0
    match op:
        case "Rotate":
            return F.rotate(x, level)
        case "ShearX":
            return F.affine(x, 0.0, [0, 0], 1.0, [shear, 0.0], center=[0, 0])
        case "ShearY":
            return F.affine(x, 0.0, [0, 0], 1.0, [0.0, shear], center=[0, 0])
    along = [int(level), 0] if op == "TranslateX" else [0, int(level)]
    return F.affine(x, 0.0, along, 1.0, [0.0, 0.0])


APART = {"Rotate": 0.01}
"""Share of a mask's pixels that may differ from torchvision's tensors: where a turn puts a pixel just between two, float32 decides
otherwise than Pillow. Nothing else differs."""


@each_mask
@pytest.mark.parametrize("op", TURNS)
def test_a_turned_mask_is_pillows_and_close_to_torchvisions(op: str, name: str) -> None:
    for level in TURNS[op]:
        program = steps_of(op, level, SIZE, 2, None)
        mine = moved_mask(program, name)
        apart = float((mine != their_mask(lambda F, x, m=level: turned(F, x, op, m), name)).mean())
        assert apart <= APART.get(op, 0.0), f"{op} {level}: {apart:.2%}"
        if name == "uint8":
            as_nearest = [Step(Code.AFFINE, (*program[0].args[:6], 0, 0))]
            np.testing.assert_array_equal(mine, execute(as_nearest, MASKS[name][:, :, None])[:, :, 0])


def test_any_integers_can_be_turned() -> None:
    program = steps_of("Rotate", 30.0, SIZE, 0, None)
    low = moved_mask(program, "uint8")
    wide = follow(program, Targets.of(SIZE, MASKS["uint8"].astype(np.int64) << 40), SIZE).masks
    assert wide is not None
    np.testing.assert_array_equal(wide >> 40, low)


@pytest.mark.parametrize("op", TURNS)
def test_a_turned_box_is_the_upright_one_around_its_corners(op: str) -> None:
    for level in TURNS[op]:
        mine = moved_boxes(steps_of(op, level, SIZE, 0, None))
        expected = their_boxes(lambda F, x, m=level: turned(F, x, op, m))
        np.testing.assert_allclose(mine, expected, atol=1e-3)


# ---- boxes that come to nothing


def test_boxes_of_less_than_a_pixel_go_with_their_labels_and_masks() -> None:
    boxes = np.array([[0, 0, 5, 5], [20, 20, 20.5, 40], [30, 30, 31, 31], [60, 30, 70, 40]], np.float32)
    found = follow(
        [Step(Code.CROP, (0, 0, 40, 50))],
        Targets.of(SIZE, MASKS["one per object"], boxes, [7, 8, 9, 10]),
        SIZE,
    )
    assert found.boxes is not None
    assert found.labels is not None
    assert found.masks is not None
    assert found.boxes.tolist() == [[0, 0, 5, 5], [30, 30, 31, 31]]
    assert found.labels.tolist() == [7, 9]
    np.testing.assert_array_equal(found.masks, MASKS["one per object"][[0, 2], :40, :50])


def test_clamping_and_dropping_agree_with_torchvision() -> None:
    rng = np.random.default_rng(1)
    corners = rng.uniform(-30, 110, (500, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(-1, 12, (500, 2))], axis=1).astype(np.float32)
    expected = their_boxes(lambda _, x: x, boxes)
    assert 50 < len(expected) < 450
    np.testing.assert_array_equal(moved_boxes([], boxes), expected)


def test_an_image_may_have_no_boxes_at_all() -> None:
    program = [*STEPS["crop"][0], *steps_of("Rotate", 30.0, (41, 39), 0, None), Step(Code.FLIP_H)]
    assert moved_boxes(program, np.zeros((0, 4), np.float32)).shape == (0, 4)


# ---- what cannot be followed


def test_a_function_of_the_users_is_refused_where_there_are_masks_or_boxes() -> None:
    image = np.zeros((*SIZE, 3), np.uint8)
    chain = Chain.of([T.Lambda(lambda x: x), T.Resize((8, 8))])
    assert chain.run_with(image, 0)[0].shape == (3, 8, 8)
    assert chain.run_with(image, 0, labels=[1, 2])[1]["labels"].tolist() == [1, 2]
    for targets in ({"masks": MASKS["uint8"]}, {"boxes": BOXES}):
        with pytest.raises(ConfigError, match="Lambda"):
            chain.run_with(image, 0, **targets)


def test_what_lays_images_over_each_other_is_refused() -> None:
    with pytest.raises(ConfigError, match="AugMix"):
        Chain.of(T.AugMix()).run_with(np.zeros((*SIZE, 3), np.uint8), 0, boxes=BOXES)
    with pytest.raises(ConfigError, match="reflect"):
        Chain.of(T.Pad(3, padding_mode="reflect")).run_with(np.zeros((*SIZE, 3), np.uint8), 0, boxes=BOXES)


@pytest.mark.parametrize(
    "targets",
    [
        {"masks": np.zeros((5, 5), np.uint8)},
        {"masks": np.zeros(SIZE, np.float32)},
        {"boxes": BOXES, "labels": [1]},
    ],
)
def test_what_does_not_belong_to_the_image_is_refused(targets: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"belong|integers"):
        Targets.of(SIZE, **targets)


# ---- image, mask and boxes together


CHAINS = {
    "crops": [T.RandomResizedCrop(64, scale=(0.3, 1.0)), T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
    "pads": [T.Pad((3, 9)), T.RandomCrop(70, pad_if_needed=True), T.ColorJitter(0.3, 0.3, 0.3, 0.1)],
    "sizes": [T.Resize(50), T.RandomErasing(p=1.0), T.GaussianBlur(3), T.CenterCrop(60), T.RandomGrayscale()],
    # Not resized afterwards: torch's nearest may then step over the last column of a pointed corner, which costs a mask 2.02
    # pixels of its box in one of 150 samples.
    "one turn": [T.RandomHorizontalFlip(), T.TrivialAugmentWide(), T.RandomVerticalFlip()],
    "moves": [
        T.RandomChoice([T.RandomHorizontalFlip(1.0), T.RandomVerticalFlip(1.0)]),
        T.RandAugment(3),
        T.Resize((60, 90)),
    ],
}
UPRIGHT = {"crops", "pads", "sizes"}


def around(where: NDArray[np.bool_]) -> list[int]:
    ys, xs = np.nonzero(where)
    return [int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1]


@pytest.mark.parametrize("name", CHAINS)
def test_image_mask_and_box_stay_together(name: str) -> None:
    rng, chain, seen = np.random.default_rng(11), Chain.of(CHAINS[name]), 0
    for seed in range(150):
        y, x, height, width = (int(n) for n in rng.integers((4, 4, 12, 12), (40, 50, 38, 40)))
        mask = np.zeros((81, 93), np.uint8)
        mask[y : y + height, x : x + width] = 1
        box = np.array([[x, y, x + width, y + height]], np.float32)
        image = np.repeat(mask[:, :, None] * 255, 3, axis=2)
        tensor, moved = chain.run_with(image, seed, masks=mask, boxes=box, labels=[seed])
        assert tensor.shape[1:] == moved["masks"].shape
        assert len(moved["boxes"]) == len(moved["labels"])
        if not len(moved["boxes"]) or not moved["masks"].any():
            continue
        seen += 1
        found, mine = np.array(around(moved["masks"].numpy() > 0)), moved["boxes"].numpy()[0]
        height, width = moved["masks"].shape
        whole = mine.min() > 0 and mine[2] < width and mine[3] < height
        if name in UPRIGHT or (name == "one turn" and whole):
            assert np.abs(found - mine).max() <= 2, f"seed {seed}: {found} {mine}"
        else:  # boxes around boxes grow with every turn, and at the border, but never lose what they are around
            assert (mine[:2] <= found[:2] + 2).all(), f"seed {seed}: {found} {mine}"
            assert (mine[2:] >= found[2:] - 2).all(), f"seed {seed}: {found} {mine}"
    assert seen > 100


def test_one_turn_keeps_the_box_tight() -> None:
    for degrees in (-30.0, -9.0, 5.0, 30.0, 90.0):
        mask = np.zeros((81, 93), np.uint8)
        mask[30:50, 40:60] = 1
        program = steps_of("Rotate", degrees, (81, 93), 0, None)
        found = follow(program, Targets.of((81, 93), mask, [[40, 30, 60, 50]]), (81, 93))
        assert found.masks is not None
        assert found.boxes is not None
        assert np.abs(np.array(around(found.masks > 0)) - found.boxes[0]).max() <= 2


def test_the_image_is_the_one_that_the_chain_gives_without_targets() -> None:
    image = np.random.default_rng(3).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    chain = Chain.of([*CHAINS["crops"], T.RandAugment(), T.ToTensor()])
    assert torch.equal(chain.run(image, 9), chain.run_with(image, 9, masks=MASKS["uint8"], boxes=BOXES)[0])


# ---- datasets


def png(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def read(index: int) -> tuple[bytes, dict[str, Any]]:
    mask = np.zeros((40, 50), np.uint8)
    mask[5 : 20 + index, 8:30] = 1 + index
    boxes = np.array([[8, 5, 30, 20 + index]] * (index % 3), np.float32).reshape(-1, 4)
    labels = np.arange(index % 3)
    return png(np.repeat(mask[:, :, None] * 20, 3, axis=2)), {
        "masks": mask,
        "boxes": boxes,
        "labels": labels,
    }


def as_tuples(batch: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*batch, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_ragged_boxes_and_masks_come_through_the_loader(workers: int) -> None:
    dataset = AnnotatedDataset(read, [T.RandomCrop(32), T.RandomHorizontalFlip(), T.ToTensor()], 10)
    loader: DataLoader[Any] = DataLoader(dataset, 4, seed=1, num_workers=workers, collate_fn=as_tuples)
    count = 0
    for images, targets in loader:
        for image, target in zip(images, targets, strict=True):
            assert image.shape == (3, 32, 32)
            levels = (image[0] * 255 / 20).round().long()
            assert torch.equal(target["masks"].long(), levels), "the mask lies where the image does"
            assert target["boxes"].shape == (len(target["labels"]), 4)
            count += 1
    assert count == 10


def test_masks_are_stacked_by_the_default_collate() -> None:
    dataset = AnnotatedDataset(lambda index: (read(index)[0], {"masks": read(index)[1]["masks"]}), None, 6)
    loaders = [DataLoader(dataset, 3, seed=1, num_workers=workers) for workers in (0, 2)]
    for (image, target), (other, same) in zip(*loaders, strict=True):
        assert target["masks"].shape == (3, 40, 50)
        assert torch.equal(image, other)
        assert torch.equal(target["masks"], same["masks"])


def test_a_target_of_another_name_is_refused() -> None:
    dataset = AnnotatedDataset(lambda index: (read(index)[0], {"keypoints": []}), None, 1)
    with pytest.raises(ConfigError, match="keypoints"):
        dataset[0]
