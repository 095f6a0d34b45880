"""torchvision's ImageFolder in our loader: recognised, prepared by us, and the same samples as if it were not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.dataset.seeding import seed_all
from penstock.pipeline.adopt import adopted
from penstock.pipeline.header import BadImage
from tests.torchvision_here import torchvision, use_convolutions

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve smooth images of different sizes and formats, two classes."""
    from PIL import Image

    use_convolutions()
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(1)
    for number in range(12):
        folder = root / ("cat" if number % 2 else "dog")
        folder.mkdir(exist_ok=True)
        height, width = rng.integers(60, 150, 2)
        coarse = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((int(width), int(height)), Image.Resampling.BICUBIC)
        if number == 5:
            image = image.convert("L")
        image.save(folder / f"{number}.{'png' if number == 4 else 'jpg'}", quality=90)
    return root


def chains() -> dict[str, Any]:
    torchvision()
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    old_tail = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
    return {
        "training, v2": v2.Compose([v2.RandomResizedCrop(48), v2.RandomHorizontalFlip(), *tail]),
        "training, v1": v1.Compose([v1.RandomResizedCrop(48), v1.RandomHorizontalFlip(), *old_tail]),
        "RandAugment": v2.Compose([v2.RandomResizedCrop(48), v2.RandAugment(), *tail]),
        "RandAugment first": v2.Compose([v2.RandAugment(), v2.RandomResizedCrop(48), *tail]),
        "RandAugment, v1": v1.Compose([v1.RandAugment(), v1.RandomResizedCrop(48), *old_tail]),
        "AutoAugment, v1": v1.Compose([v1.Resize((50, 60)), v1.AutoAugment(), *old_tail]),
        "TrivialAugment, v1": v1.Compose([v1.Resize((50, 60)), v1.TrivialAugmentWide(), *old_tail]),
        "AutoAugment": v2.Compose([v2.Resize((50, 60)), v2.AutoAugment(), *tail]),
        "TrivialAugment": v2.Compose([v2.Resize((50, 60)), v2.TrivialAugmentWide(), *tail]),
        "testing, v2": v2.Compose([v2.Resize(64), v2.CenterCrop(56), *tail]),
        "testing, v1": v1.Compose([v1.Resize(64), v1.CenterCrop(56), *old_tail]),
        "jitter": v2.Compose([v2.Resize(40), v2.CenterCrop(40), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), *tail]),
        "crop and pad": v2.Compose(
            [v2.Resize(40), v2.RandomCrop(40, padding=4), v2.RandomVerticalFlip(), *tail]
        ),
        "uint8": v2.Compose([v2.RandomResizedCrop(32), v2.PILToTensor()]),
        "with Python in it": v2.Compose([v2.Resize((40, 40)), upside_down, v2.RandomHorizontalFlip(), *tail]),
        "erasing behind": v2.Compose([v2.RandomResizedCrop(32), *tail, v2.RandomErasing(p=1.0)]),
        "antialias=False": v2.Compose([v2.Resize((36, 40), antialias=False), *tail]),
        "nearest": v2.Compose([v2.Resize((37, 41), interpolation=v2.InterpolationMode.NEAREST), *tail]),
        "padding": v2.Compose([v2.Resize(40), v2.CenterCrop(40), v2.Pad(3, padding_mode="symmetric"), *tail]),
        "nested": v2.Compose([v2.Compose([v2.Resize((36, 36)), v2.Grayscale(3)]), *tail]),
        "AugMix": v2.Compose([v2.RandomResizedCrop(48), v2.AugMix(severity=10), *tail]),
        "AugMix, v1": v1.Compose([v1.RandomResizedCrop(48), v1.AugMix(severity=10), *old_tail]),
        "AugMix, few ops": v2.Compose(
            [
                v2.AugMix(mixture_width=2, chain_depth=3, all_ops=False, interpolation="nearest"),
                v2.RandomCrop(40),
                *tail,
            ]
        ),
        "AugMix of grey": v2.Compose(
            [v2.Resize(40), v2.Grayscale(1), v2.AugMix(severity=8), v2.PILToTensor()]
        ),
        "SimCLR": v2.Compose(
            [
                v2.RandomResizedCrop(48),
                v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
                v2.RandomGrayscale(0.5),
                v2.RandomApply([v2.GaussianBlur((5, 9), (0.1, 2.0))], p=0.5),
                v2.RandomSolarize(128, p=0.3),
                *tail,
            ]
        ),
        "SimCLR, v1": v1.Compose(
            [
                v1.RandomResizedCrop(48),
                v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
                v1.RandomGrayscale(0.5),
                v1.RandomApply([v1.GaussianBlur(5, (0.1, 2.0))], p=0.5),
                v1.RandomSolarize(128, p=0.3),
                *old_tail,
            ]
        ),
        "turned": v2.Compose(
            [
                v2.RandomRotation(30),
                v2.RandomAffine(20, (0.2, 0.1), (0.5, 1.5), 10, interpolation="bilinear", fill=(3, 60, 200)),
                v2.RandomAffine((0, 0), (0.3, 0.3), center=(5, 9)),
                v2.RandomRotation((-200, 200), interpolation="bicubic", fill=9),
                *tail,
            ]
        ),
        "turned, v1": v1.Compose(
            [v1.RandomRotation(30, fill=7), v1.RandomAffine(20, (0.2, 0.1), (0.5, 1.5), 10), *old_tail]
        ),
        "colours": v2.Compose([v2.Resize((40, 50)), *colours(v2), *tail]),
        "colours, v1": v1.Compose([v1.Resize((40, 50)), *colours(v1), *old_tail]),
        "one of them": v2.Compose(
            [
                v2.RandomChoice(
                    [v2.RandomVerticalFlip(1.0), v2.Grayscale(3), v2.RandomRotation(90)], p=[0.5, 0.3, 0.2]
                ),
                v2.RandomOrder(
                    [v2.RandomCrop(50), v2.RandomInvert(), v2.Compose([v2.RandAugment(), v2.Identity()])]
                ),
                *tail,
            ]
        ),
        "sizes": v2.Compose(
            [
                v2.RandomShortestSize([50, 60, 70], max_size=90),
                v2.RandomZoomOut(side_range=(1.0, 1.5), fill=8, p=0.7),
                v2.ScaleJitter((60, 60), (0.8, 1.5)),
                v2.RandomResize(40, 60),
                *tail,
            ]
        ),
        "RGB": v2.Compose([v2.RGB(), v2.RandomResizedCrop(32), v2.Identity(), *tail]),
        "grey, then RGB": v2.Compose([v2.Resize((20, 20)), v2.Grayscale(1), v2.RGB(), *tail]),
        "grey, and grey at random": v2.Compose([v2.Grayscale(1), v2.RandomGrayscale(0.5), v2.PILToTensor()]),
        "Python in a choice": v2.Compose([v2.Resize((30, 30)), v2.RandomApply([upside_down]), *tail]),
    }


def colours(version: Any) -> list[Any]:
    return [
        version.RandomInvert(),
        version.RandomPosterize(3),
        version.RandomSolarize(100.0),
        version.RandomAdjustSharpness(2.5),
        version.RandomAutocontrast(),
        version.RandomEqualize(),
    ]


def upside_down(image: Any) -> Any:
    from PIL import Image

    assert isinstance(image, Image.Image)
    return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)


NAMES = (
    "training, v2", "training, v1", "RandAugment", "RandAugment first", "AutoAugment",
    "RandAugment, v1", "AutoAugment, v1", "TrivialAugment, v1", "TrivialAugment", "testing, v2", "testing, v1",
    "jitter", "crop and pad", "uint8", "with Python in it", "erasing behind", "nested", "AugMix", "AugMix, v1", "AugMix, few ops",
    "AugMix of grey", "SimCLR", "SimCLR, v1", "turned", "turned, v1", "colours", "colours, v1", "one of them", "sizes",
    "grey, and grey at random", "Python in a choice", "RGB", "grey, then RGB", "antialias=False", "nearest", "padding",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:Anti-alias option is always applied:UserWarning")
def test_an_adopted_chain_makes_torchvisions_samples_from_torchvisions_draws(name: str, photos: Path) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder

    dataset = ImageFolder(str(photos), chains()[name])
    mine = adopted(dataset)
    assert mine is not None
    for seed in range(3):
        for index in range(len(dataset)):
            seed_all(100 * seed + index)
            theirs, target = dataset[index]
            seed_all(100 * seed + index)
            ours, our_target = mine[index]
            assert our_target == target
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            assert torch.equal(ours, theirs), "bit for bit"


def edges() -> dict[str, list[Any]]:
    """Parameters at the edge of what our steps have, or beyond it."""
    torchvision()
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    grey, at_random = v2.Grayscale(1), v2.RandomGrayscale(1.0)
    return {
        "rotation, fill of one": [v2.RandomRotation(90, fill=[9])],
        "rotation, fill of one, v1": [v1.RandomRotation(90, fill=[9])],
        "affine, fill of one": [v2.RandomAffine(30, fill=(9,))],
        "padding, fill of one": [v2.Pad(3, fill=[9])],
        "padding, fill in fractions": [v2.Pad(3, fill=2.7)],
        "padding, fill in fractions, v1": [v1.Pad(3, fill=(0.7, 1.7, 2.7))],
        "padding, negative": [v2.Pad(-3)],
        "padding, one side negative": [v2.Pad([4, -3, 2, 1], padding_mode="edge")],
        "padding, negative, v1": [v1.Pad((2, -3))],
        "crop, fill in fractions": [v2.RandomCrop(60, padding=9, fill=2.7)],
        "crop, fill of one": [v2.RandomCrop(60, padding=9, fill=[9])],
        "crop, negative": [v2.RandomCrop(40, padding=-3)],
        "zoom, fill in fractions": [v2.RandomZoomOut(fill=0.7, p=1.0)],
        "zoom, fill of one": [v2.RandomZoomOut(fill=[9], p=1.0)],
        "grey in any order": [v2.RandomOrder([grey, at_random])],
        "grey, then RGB within": [v2.RandomApply([v2.Compose([grey, v2.RGB()])], p=1.0)],
        "grey in a choice, deeper": [v2.RandomOrder([v2.RandomChoice([grey, v2.Identity()]), at_random])],
    }


EDGES = (
    "rotation, fill of one", "rotation, fill of one, v1", "affine, fill of one", "padding, fill of one", "padding, fill in fractions",
    "padding, fill in fractions, v1", "padding, negative", "padding, one side negative", "padding, negative, v1",
    "crop, fill in fractions", "crop, fill of one", "crop, negative", "zoom, fill in fractions", "zoom, fill of one",
    "grey in any order", "grey, then RGB within", "grey in a choice, deeper",
)  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_parameters_at_the_edge_of_what_we_know_make_torchvisions_samples_too(
    name: str, photos: Path
) -> None:
    check_samples(photos, edges()[name], seeds=2)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("kind", ["RandomAffine", "RandomRotation"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_turned_images_have_the_last_bits_of_their_version(
    version: str, kind: str, interpolation: str, tmp_path: Path
) -> None:
    """Of noise, where each bit of a matrix can show."""
    from PIL import Image

    torchvision()
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    rng = np.random.default_rng(5)
    (tmp_path / "noise").mkdir()
    for at, size in enumerate([(64, 80), (33, 41), (90, 50), (200, 20)]):
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "noise" / f"{at}.png")
    how = v1.InterpolationMode(interpolation)
    turn = getattr(v1 if version == "v1" else v2, kind)(30, interpolation=how)
    check_samples(tmp_path, [turn], seeds=60)


def check_samples(root: Path, ops: list[Any], seeds: int) -> None:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    # a flip, so that the chain is adopted also where its other ops are left alone
    dataset = ImageFolder(str(root), v2.Compose([v2.RandomHorizontalFlip(), *ops, v2.PILToTensor()]))
    mine = adopted(dataset)
    assert mine is not None
    for seed in range(seeds):
        for index in range(len(dataset)):
            seed_all(100 * seed + index)
            theirs = dataset[index][0]
            seed_all(100 * seed + index)
            ours = mine[index][0]
            assert ours.shape == theirs.shape
            assert torch.equal(ours, theirs), f"seed {seed}, sample {index}"


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("bits", [0, 9])
def test_bits_that_torchvision_refuses_are_refused(version: str, bits: int, photos: Path) -> None:
    torchvision()
    from torchvision import transforms as v1
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    posterize = (v1 if version == "v1" else v2).RandomPosterize(bits, p=1.0)
    chain = v2.Compose([v2.RandomHorizontalFlip(), posterize, v2.PILToTensor()])
    dataset = ImageFolder(str(photos), chain)
    mine = adopted(dataset)
    assert mine is not None
    with pytest.raises(ValueError, match="bits") as theirs:
        dataset[0]
    with pytest.raises(ValueError, match="bits") as ours:
        mine[0]
    assert str(ours.value) == str(theirs.value)


def test_a_fill_of_another_number_of_channels_is_left_to_torchvision(photos: Path) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    chain = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomAffine(30, fill=(1, 2)), v2.PILToTensor()])
    mine = adopted(ImageFolder(str(photos), chain))
    assert mine is not None
    with pytest.raises(ValueError, match="number of elements in 'fill'"):
        mine[0]


def test_the_generator_is_left_where_torchvision_leaves_it(photos: Path) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder

    for name in (
        "training, v2",
        "RandAugment",
        "jitter",
        "AutoAugment",
        "RandAugment, v1",
        "AutoAugment, v1",
        "AugMix",
        "AugMix, v1",
        "SimCLR",
        "SimCLR, v1",
        "turned",
        "turned, v1",
        "colours",
        "colours, v1",
        "one of them",
        "sizes",
    ):
        dataset = ImageFolder(str(photos), chains()[name])
        mine = adopted(dataset)
        assert mine is not None
        for index in range(6):
            seed_all(index)
            dataset[index]
            after = torch.rand(1)
            seed_all(index)
            mine[index]
            assert torch.equal(after, torch.rand(1)), name


WHOLLY = [
    "AugMix", "AugMix, v1", "AugMix, few ops", "AugMix of grey", "SimCLR", "SimCLR, v1", "turned", "turned, v1", "colours", "colours, v1",
    "one of them", "sizes", "RGB",
]  # fmt: skip


@pytest.mark.parametrize("name", WHOLLY)
def test_chains_of_transforms_that_we_know_are_adopted_as_a_whole(name: str, photos: Path) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder

    mine = adopted(ImageFolder(str(photos), chains()[name]))
    assert mine is not None
    assert [type(op).__name__ for op, draw in mine.chain.ops if draw is None] == []


def test_a_crop_that_is_larger_than_any_photo_is_no_error_before_its_sample(photos: Path) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    enlarged = v2.Compose([v2.Resize((700, 900)), v2.RandomCrop(650), v2.PILToTensor()])
    mine = adopted(ImageFolder(str(photos), enlarged))
    assert mine is not None
    assert mine[0][0].shape == (3, 650, 650)
    too_small = adopted(
        ImageFolder(str(photos), v2.Compose([v2.Resize((8, 8)), v2.RandomCrop(9), v2.PILToTensor()]))
    )
    assert too_small is not None
    with pytest.raises(ValueError, match="larger than"):
        too_small[0]


def test_what_may_mean_anything_is_left_alone(photos: Path) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    class Mine(ImageFolder):
        pass

    tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    chain = v2.Compose([v2.Resize((8, 8)), *tail])
    assert adopted(ImageFolder(str(photos), chain)) is not None
    assert adopted(Mine(str(photos), chain)) is None
    assert adopted(ImageFolder(str(photos), chain, loader=lambda path: path)) is None
    assert adopted(ImageFolder(str(photos), None)) is None
    assert adopted(ImageFolder(str(photos), v2.Compose([v2.Resize((8, 8))]))) is None, (
        "it ends with a Pillow image"
    )
    assert adopted(ImageFolder(str(photos), v2.Compose([*tail, v2.Resize((8, 8))]))) is None, (
        "its ops work on tensors"
    )
    patched = ImageFolder(str(photos), chain)
    patched.__getitem__ = lambda index: index
    assert adopted(patched) is None


def test_what_the_owner_changes_later_is_followed(photos: Path) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    dataset = ImageFolder(str(photos), v2.Compose([v2.Resize((8, 8)), v2.PILToTensor()]))
    mine = adopted(dataset)
    assert mine is not None
    dataset.transform = dataset.transforms.transform = v2.Compose([v2.Resize((4, 4)), v2.PILToTensor()])
    assert mine[0][0].shape == (3, 4, 4)


def test_a_file_that_we_refuse_is_left_to_torchvision(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    def refuse(*_: object) -> None:
        raise BadImage("a warning of libjpeg's")

    dataset = ImageFolder(str(photos), v2.Compose([v2.RandomResizedCrop(8), v2.PILToTensor()]))
    mine = adopted(dataset)
    assert mine is not None
    monkeypatch.setattr("penstock.pipeline.decode.Encoded.part", refuse)
    torch.manual_seed(5)
    found = mine[0][0]
    torch.manual_seed(5)
    assert torch.equal(found, dataset[0][0]), "with the draws that it would have made itself"
