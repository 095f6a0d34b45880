"""`fast_decode`: the same pixels where nothing is reduced, near ones where a photo is decoded at a smaller scale; asked for only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("simplejpeg")
pytest.importorskip("PIL.Image")

from PIL import Image

from penstock import ConfigError, DataLoader, ImageFolder
from penstock import transforms as T
from penstock.pipeline.chain import reduction
from penstock.pipeline.header import BadImage
from penstock.transforms.steps import Code, Step
from tests.torchvision_here import torchvision
from tests.unit.test_jpeg_parts import jpeg_of, needs_loops, photo


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(6):
        path = tmp_path / "photos" / f"{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg_of(photo(300 + 40 * number, 400, number)))
    return tmp_path / "photos"


def samples(root: Path, size: int, **options: Any) -> list[Any]:
    dataset = ImageFolder(root, T.Compose([T.RandomResizedCrop(size, scale=(0.5, 1.0))]), **options)
    return [image for image, _ in DataLoader(dataset, batch_size=None, seed=3)]


def test_pixels_are_the_same_where_nothing_is_reduced(photos: Path) -> None:
    plain, fast = samples(photos, 224), samples(photos, 224, fast_decode=True)
    assert all(torch.equal(one, other) for one, other in zip(plain, fast, strict=True))


def test_a_reduced_photo_differs_by_less_than_the_docs_say(photos: Path) -> None:
    plain, fast = samples(photos, 48), samples(photos, 48, fast_decode=True)
    assert not torch.equal(torch.stack(plain), torch.stack(fast)), "some were reduced"
    for one, other in zip(plain, fast, strict=True):
        assert (one.float() - other.float()).abs().mean() < 4


@needs_loops
def test_damage_below_the_crop_is_not_noticed(photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut" / "0" / "0.jpg"
    path.parent.mkdir(parents=True)
    data = (photos / "0" / "0.jpg").read_bytes()
    path.write_bytes(data[:-200])
    chain = T.Compose([T.RandomCrop((40, 40))])
    strict, fast = (
        ImageFolder(tmp_path / "cut", chain),
        ImageFolder(tmp_path / "cut", chain, fast_decode=True),
    )
    with pytest.raises(BadImage) as raised:
        strict[0]
    assert "0.jpg" in raised.value.__notes__[0], "the message names the file"
    for seed in range(20):
        torch.manual_seed(seed)
        try:
            assert fast[0][0].shape == (3, 40, 40)
            return
        except BadImage:
            continue  # the crop was at the bottom
    pytest.fail("every crop needed the end of the file")


def test_a_chain_without_random_ops_decodes_exactly(photos: Path) -> None:
    chain = T.Compose([T.CenterCrop(280), T.Resize((40, 40))])
    plain, fast = ImageFolder(photos, chain), ImageFolder(photos, chain, fast_decode=True)
    assert torch.equal(plain[0][0], fast[0][0])


@pytest.mark.parametrize(
    ("place", "target", "factor"),
    [
        ((0, 0, 400, 400), (200, 200), 2),
        ((0, 0, 400, 400), (201, 200), 1),
        ((0, 0, 400, 400), (100, 90), 4),
        ((0, 0, 400, 400), (20, 20), 8),
        ((0, 0, 200, 200), (20, 20), 1),  # a small part is decoded by itself
        ((-1, 0, 400, 400), (20, 20), 1),
    ],
)
def test_how_far_a_photo_is_reduced(place: Any, target: tuple[int, int], factor: int) -> None:
    program = [Step(Code.CROP, place), Step(Code.RESIZE, (*target, 2, True))]
    assert reduction(program, (400, 420)) == factor
    assert reduction([Step(Code.FLIP_H), *program], (400, 420)) == 1


def test_adopted_chains_decode_fast_only_when_asked(photos: Path) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder as Theirs
    from torchvision.transforms import v2

    dataset = Theirs(str(photos), v2.Compose([v2.RandomResizedCrop(40, scale=(0.6, 1.0)), v2.PILToTensor()]))
    found = {
        adopt: torch.stack([image for image, _ in DataLoader(dataset, batch_size=None, seed=1, adopt=adopt)])
        for adopt in (False, True, "fast_decode")
    }
    assert torch.equal(found[False], found[True])
    assert not torch.equal(found[True], found["fast_decode"])
    with pytest.raises(ConfigError, match="adopt must be"):
        DataLoader(dataset, adopt="fast")


# ---- samples that are written straight into their batch


class Doubled(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image * 2, target


def test_a_subclass_with_another_getitem_is_asked(photos: Path) -> None:
    chain = T.Compose([T.Resize((16, 16)), T.ToDtype(torch.float32, scale=True)])
    plain = next(iter(DataLoader(ImageFolder(photos, chain), batch_size=6, num_workers=2)))[0]
    doubled = next(iter(DataLoader(Doubled(photos, chain), batch_size=6, num_workers=2)))[0]
    assert torch.equal(doubled, plain * 2)


@pytest.mark.parametrize("subset", [False, True])
def test_batches_of_workers_are_the_samples_themselves(photos: Path, subset: bool) -> None:
    chain = T.Compose(
        [T.Resize((16, 16)), T.ToDtype(torch.float32, scale=True), T.Normalize([0.4] * 3, [0.2] * 3)]
    )
    dataset: Any = ImageFolder(photos, chain)
    if subset:
        dataset = torch.utils.data.Subset(dataset, [5, 0, 3, 3])
    found = list(DataLoader(dataset, batch_size=2, num_workers=2))
    images = torch.cat([images for images, _ in found])
    assert torch.equal(images, torch.stack([dataset[at][0] for at in range(len(dataset))]))


def test_images_of_several_sizes_are_an_error_that_names_the_sample(photos: Path, tmp_path: Path) -> None:
    Image.fromarray(photo(40, 50)).save(photos / "0" / "small.png")
    dataset = ImageFolder(photos, T.Compose([T.ToDtype(torch.float32, scale=True)]))
    with pytest.raises(RuntimeError, match=r"stack expects each tensor to be equal size|equal size"):
        list(DataLoader(dataset, batch_size=7, num_workers=2))


def test_a_tail_that_does_not_fit_is_an_error_of_its_sample(photos: Path) -> None:
    chain = T.Compose(
        [T.Grayscale(), T.ToDtype(torch.float32, scale=True), T.Normalize([0.4] * 3, [0.2] * 3)]
    )
    with pytest.raises(ConfigError, match="3 means for an image of 1 channels"):
        list(DataLoader(ImageFolder(photos, chain), batch_size=2, num_workers=2))
