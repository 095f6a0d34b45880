"""Ops called on samples of any structure, beside torchvision's v2 fed the same draw."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock import ConfigError
from penstock import transforms as T
from penstock.dataset.seeding import call_seed
from penstock.pipeline.chain import Chain
from penstock.transforms.steps import Code, Program
from tests.sample_values import PIXELS, SIZE, pil, seeded, target, tensor_image, tv

pytest.importorskip("cv2")


def drawn(seed: int, ops: Any) -> Program:
    """What a call draws outside of a loader, from torch's generator."""
    torch.manual_seed(seed)
    return Chain.of(ops).draw(call_seed("Compose"), SIZE)


# ---- torchvision, fed our draws


def fed(name: str, params: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    """torchvision's op, with these parameters in the place of its own draw."""
    tv()
    from torchvision.transforms import v2

    base = getattr(v2, name)
    return type(name, (base,), {"make_params": lambda *_: params})(*args, **kwargs)


def place(program: Program) -> dict[str, int]:
    (step,) = (step for step in program if step.code is Code.CROP)
    return dict(zip(("top", "left", "height", "width"), step.args, strict=True))


def their_crop(program: Program) -> Any:
    pads = [step.args for step in program if step.code is Code.PAD]
    left, top, right, bottom = pads[0][:4] if pads else (0, 0, 0, 0)
    params = {"needs_pad": bool(pads), "padding": [left, top, right, bottom], "needs_crop": True}
    return fed("RandomCrop", {**params, **place(program)}, 40, padding=3, pad_if_needed=True)


def flips(program: Program) -> float:
    return float(bool(program))


CASES: dict[str, tuple[Any, Callable[[Program], Any]]] = {
    "resized crop": (
        T.RandomResizedCrop((24, 30)),
        lambda p: fed("RandomResizedCrop", place(p), (24, 30)),
    ),
    "crop": (T.RandomCrop(40, padding=3, pad_if_needed=True), their_crop),
    "flip": (T.RandomHorizontalFlip(), lambda p: fed("RandomHorizontalFlip", {}, flips(p))),
    "upside down": (T.RandomVerticalFlip(), lambda p: fed("RandomVerticalFlip", {}, flips(p))),
    "resize": (T.Resize((33, 59)), lambda _: fed("Resize", {}, (33, 59))),
    "shorter side": (T.Resize(100), lambda _: fed("Resize", {}, 100)),
    # By an odd number of columns too wide, torchvision moves boxes by one more than the image; ours stay with it.
    "middle": (T.CenterCrop((50, 91)), lambda _: fed("CenterCrop", {}, (50, 91))),
    "pad": (T.Pad((3, 9)), lambda _: fed("Pad", {}, (3, 9))),
    "pad with a number": (T.Pad((1, 2, 3, 4), fill=7), lambda _: fed("Pad", {}, (1, 2, 3, 4), fill=7)),
    "pad by kind": (
        T.Pad(4, fill={"others": 2}),
        lambda _: fed("Pad", {}, 4, fill={"others": 2}),
    ),
}
SMOOTH = {"resized crop": 1, "resize": 1, "shorter side": 1}
"""Levels by which uint8 tensors may differ: ours are resampled as Pillow does it, which torchvision does for Pillow images only."""


def same_kind(mine: Any, other: Any) -> None:
    assert type(mine) is type(other)
    assert mine.dtype == other.dtype
    assert getattr(mine, "canvas_size", None) == getattr(other, "canvas_size", None)
    assert getattr(mine, "format", None) == getattr(other, "format", None)


@pytest.mark.parametrize("form", ["XYXY", "XYWH", "CXCYWH"])
@pytest.mark.parametrize("case", CASES)
def test_a_sample_is_moved_as_torchvision_moves_it(case: str, form: str) -> None:
    op, reference = CASES[case]
    for seed in range(6):
        theirs = reference(drawn(seed, op))
        (picture, mine), (their_picture, other) = (
            seeded(seed, one, pil(), target(form)) for one in (op, theirs)
        )
        np.testing.assert_array_equal(np.asarray(picture), np.asarray(their_picture))
        for name in ("mask", "masks"):
            same_kind(mine[name], other[name])
            assert torch.equal(mine[name], other[name])
        for name in ("boxes", "whole", "points"):
            same_kind(mine[name], other[name])
            torch.testing.assert_close(
                mine[name].as_subclass(torch.Tensor), other[name].as_subclass(torch.Tensor), atol=1e-3, rtol=0
            )
        image, their_image = seeded(seed, op, tensor_image()), seeded(seed, theirs, tensor_image())
        same_kind(image, their_image)
        assert (image.int() - their_image.int()).abs().max() <= SMOOTH.get(case, 0)


@pytest.mark.parametrize("kind", ["float", "RGBA", "video", "batch"])
@pytest.mark.parametrize("case", CASES)
def test_other_kinds_of_images_have_torchvisions_pixels(case: str, kind: str) -> None:
    op, reference = CASES[case]
    if kind == "RGBA":
        value: Any = pil(np.dstack([PIXELS, PIXELS[:, :, 0]]))
    else:
        value = {
            "float": lambda: tv().Image(tensor_image() / 255),
            "video": lambda: tv().Video(torch.stack([tensor_image(), tensor_image().flip(0)])),
            "batch": lambda: torch.stack([tensor_image().as_subclass(torch.Tensor)] * 2),
        }[kind]()
    mine, other = seeded(1, op, value), seeded(1, reference(drawn(1, op)), value)
    assert type(mine) is type(other)
    apart = np.abs(np.asarray(mine, np.float64) - np.asarray(other, np.float64))
    assert apart.max() <= (SMOOTH.get(case, 0) if kind in ("video", "batch") else 0)


def test_colours_leave_masks_boxes_and_points_alone() -> None:
    given = target()
    ops = [T.ColorJitter(0.4, 0.4, 0.4, 0.2), T.GaussianBlur(3), T.Grayscale(3), T.RandomErasing(p=1.0)]
    for image in (pil(), tensor_image(), tv().Image(tensor_image() / 255)):
        found, moved = T.Compose(ops)(image, given)
        assert not np.array_equal(np.asarray(found), np.asarray(image))
        assert all(torch.equal(moved[name], given[name]) for name in given if name != "name")


@pytest.mark.parametrize("op", [T.ColorJitter(0.4, 0.4, 0.4, 0.2), T.GaussianBlur(3), T.RandomGrayscale(1.0)])
def test_colours_of_float_images_are_torchvisions_with_our_draw(op: Any) -> None:
    image = tv().Image(tensor_image() / 255)
    from torchvision.transforms.v2 import functional as F

    expected = image
    for code, args in drawn(3, op):
        names = {
            Code.BRIGHTNESS: F.adjust_brightness,
            Code.CONTRAST: F.adjust_contrast,
            Code.SATURATION: F.adjust_saturation,
            Code.HUE: F.adjust_hue,
            Code.GRAY: F.rgb_to_grayscale,
        }
        if code is Code.BLUR:
            expected = F.gaussian_blur(expected, list(args[:2]), list(args[2:]))
        else:
            expected = names[code](expected, *args)
    assert torch.equal(seeded(3, op, image), expected)


# ---- a call, and a chain of a staged dataset


CHAIN = [
    T.RandomResizedCrop(40, scale=(0.3, 1.0)),
    T.RandomApply([T.RandomHorizontalFlip(), T.RandomVerticalFlip()], 0.8),
    T.RandomChoice([T.RandAugment(), T.ColorJitter(0.3)]),
    T.ToImage(),
    T.ToDtype(torch.float32, scale=True),
    T.Normalize([0.5] * 3, [0.25] * 3),
]


def test_a_call_makes_what_a_staged_dataset_makes() -> None:
    ending = [T.ClampBoundingBoxes(), T.SanitizeBoundingBoxes()]
    chain = T.Compose([*CHAIN, *ending])
    for seed in range(20):
        given = {name: target()[name] for name in ("boxes", "masks", "labels")}
        image, found = seeded(seed, chain, pil(), given)
        torch.manual_seed(seed)
        expected, moved = Chain.of(CHAIN).run_with(PIXELS, call_seed("Compose"), **given)
        assert torch.equal(image, expected)
        for name, value in moved.items():
            assert torch.equal(found[name].as_subclass(torch.Tensor), value)


def test_the_tail_is_torchvisions() -> None:
    tv()
    from torchvision.transforms import ToTensor, v2

    assert torch.equal(T.ToTensor()(pil()), ToTensor()(pil()))

    def tail(module: Any) -> Any:
        return module.Compose(
            [
                module.ToImage(),
                module.ToDtype(torch.float32, scale=True),
                module.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]),
            ]
        )

    for image in (pil(), tensor_image(), tv().Video(tensor_image()[None])):
        mine, other = (op(image, target())[0] for op in (tail(T), tail(v2)))
        same_kind(mine, other)
        assert torch.equal(mine, other)


def test_a_dtype_for_each_kind_is_torchvisions_matter() -> None:
    dtypes = {tv().Mask: torch.uint8, tv().Image: torch.float32, "others": None}
    image, found = T.Compose([T.Resize(20), T.ToImage(), T.ToDtype(dtypes, scale=True)])(pil(), target())
    assert image.dtype == torch.float32
    assert found["mask"].dtype == torch.uint8
    assert found["boxes"].dtype == torch.float32
    with pytest.raises(ConfigError, match="one dtype"):
        Chain.of(T.ToDtype(dtypes))


def test_a_tail_may_come_before_other_ops() -> None:
    chain = T.Compose(
        [T.ToImage(), T.ToDtype(torch.float32, scale=True), T.RandomCrop(20), T.RandomErasing(1.0)]
    )
    image = chain(pil())
    assert type(image) is tv().Image
    assert image.shape == (3, 20, 20)
    assert (image == 0).any()


# ---- boxes that come to nothing


@pytest.mark.parametrize("form", ["XYXY", "XYWH", "CXCYWH"])
@pytest.mark.parametrize("least", [1.0, 12.0])
def test_boxes_are_sanitised_exactly_as_by_torchvision(least: float, form: str) -> None:
    tv()
    from torchvision.transforms import v2

    rng = np.random.default_rng(1)
    corners = rng.uniform(-30, 110, (300, 2))
    spread = torch.from_numpy(
        np.concatenate([corners, corners + rng.uniform(-1, 30, (300, 2))], axis=1)
    ).float()
    given = tv().BoundingBoxes(spread, format="XYXY", canvas_size=SIZE)
    given = v2.functional.convert_bounding_box_format(given, new_format=form)
    sample = pil(), {"boxes": given, "Labels": torch.arange(300), "masks": tv().Mask(torch.zeros(300, *SIZE))}
    found = [
        module.Compose([module.ClampBoundingBoxes(), module.SanitizeBoundingBoxes(min_size=least)])(*sample)[
            1
        ]
        for module in (T, v2)
    ]
    assert 20 < len(found[0]["boxes"]) < 280
    for name in sample[1]:
        assert torch.equal(found[0][name], found[1][name])


def test_labels_may_be_got_by_a_function_or_not_at_all() -> None:
    narrow = tv().BoundingBoxes(
        torch.tensor([[0.0, 0, 0.5, 9], [0, 0, 9, 9]]), format="XYXY", canvas_size=SIZE
    )
    sample = {"b": narrow, "area": torch.tensor([4, 5])}
    assert T.SanitizeBoundingBoxes(labels_getter=lambda s: s["area"])(sample)["area"].tolist() == [5]
    assert len(T.SanitizeBoundingBoxes(labels_getter=None)(sample)["area"]) == 2
    with pytest.raises(ValueError, match="labels"):
        T.SanitizeBoundingBoxes()(sample)
    with pytest.raises(ConfigError, match="min_size"):
        T.SanitizeBoundingBoxes(min_size=0)


# ---- what is an image, and what is not


def test_the_first_plain_tensor_is_an_image_only_where_there_is_no_other() -> None:
    plain, label = tensor_image().as_subclass(torch.Tensor), torch.arange(6).reshape(2, 3)
    first, second = T.Resize(20)(plain, label)
    assert first.shape[1:] == (20, 27)
    assert second is label
    found = T.Resize(20)({"extra": plain, "image": pil(), "label": 3})
    assert found["extra"] is plain
    assert found["image"].size == (27, 20)
    assert T.Resize(20)([torch.tensor(3), plain])[1].shape[1:] == (20, 27)


def test_what_cannot_be_moved_is_refused() -> None:
    with pytest.raises(TypeError, match="no image"):
        T.RandomCrop(3)({"label": 3, "array": PIXELS})
    with pytest.raises(ValueError, match="several sizes"):
        T.RandomCrop(3)([pil(), pil(PIXELS[:50])])
    with pytest.raises(ConfigError, match="Lambda"):
        T.Lambda(lambda x: x)(pil(), target())
    with pytest.raises(ConfigError, match="reflect"):
        T.Pad(3, padding_mode="reflect")(pil(), target())


def test_points_cannot_be_turned() -> None:
    turn = T.RandAugment(num_ops=12)  # at least one of them a turn
    with pytest.raises(ConfigError, match=r"affine.*KeyPoints"):
        seeded(0, turn, pil(), target()["points"])


def test_functions_and_ops_of_torchvision_may_stand_between_ours() -> None:
    tv()
    from torchvision.transforms import v2

    def renamed(image: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return image, {"boxes": given["boxes"], "labels": given["labels"]}

    mixed = [T.RandomCrop(40), renamed, v2.RandomHorizontalFlip(1.0), T.ToImage(), v2.ToPureTensor()]
    for chain in (T.Compose(mixed), v2.Compose(mixed)):
        image, found = chain(pil(), target())
        assert type(image) is type(found["boxes"]) is torch.Tensor
        assert sorted(found) == ["boxes", "labels"]


def test_without_torchvision_images_and_labels_go_through() -> None:
    script = """
import sys
sys.modules["torchvision"] = None
import torch
from PIL import Image
from penstock import MissingExtra
from penstock import transforms as T
chain = T.Compose([T.RandomCrop(8), T.ToImage(), T.ToDtype(torch.float32, scale=True)])
image, target = chain(Image.new("RGB", (20, 10)), {"label": 3})
assert type(image) is torch.Tensor and image.shape == (3, 8, 8) and target == {"label": 3}
assert T.RandomCrop(4)(torch.zeros(3, 9, 9, dtype=torch.uint8)).shape == (3, 4, 4)
try:
    T.RandomCrop(4)(torch.zeros(3, 9, 9))
except MissingExtra as exc:
    assert "pip install torchvision" in str(exc)
else:
    raise AssertionError
"""
    path = str(Path(penstock.__file__).parents[1])
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": path}, timeout=60)
