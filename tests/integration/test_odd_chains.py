"""Chains that are not as usual: functions that change sizes, other tails, datasets with names of ours, files that are cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("simplejpeg")
pytest.importorskip("PIL.Image")

from torch.utils.data import Dataset

from penstock import ConfigError, DataLoader, StagedDataset
from penstock import transforms as T
from penstock.pipeline.adopt import adopted
from penstock.pipeline.decode import Encoded
from penstock.pipeline.header import BadImage
from penstock.transforms.windows import Window
from tests.torchvision_here import torchvision
from tests.unit.test_jpeg_parts import jpeg_of, needs_loops, photo

PHOTO = jpeg_of(photo(240, 320))


def dataset(chain: Any, data: bytes = PHOTO, length: int = 4, **options: Any) -> StagedDataset:
    return StagedDataset(lambda _: (data, 0), chain, length, **options)


class Todo(Dataset[torch.Tensor]):
    """A dataset of the user's that happens to have such a method."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index))

    def unfinished(self, index: int = 0) -> list[int]:
        return [index]


def test_a_method_of_the_users_is_not_taken_for_ours() -> None:
    found = torch.cat(list(DataLoader(Todo(), batch_size=4, num_workers=1)))
    assert torch.equal(found[:, 0], torch.arange(8.0))


def test_ops_behind_a_function_know_the_size_that_it_left() -> None:
    half = T.Lambda(lambda image: np.ascontiguousarray(image[::2, ::2]))
    whole = dataset([half])[0][0]
    cropped = dataset([half, T.RandomHorizontalFlip(1.0), T.CenterCrop(60)])[0][0]
    assert torch.equal(cropped, whole[:, 30:90, 50:110].flip(2))
    padded = dataset([lambda image: image[:200, :200], T.CenterCrop(150)])[0][0]
    assert torch.equal(padded, dataset([])[0][0][:, 25:175, 25:175])


def test_a_transform_of_others_that_resizes_is_followed() -> None:
    torchvision()
    from torchvision.transforms import v2

    found = dataset([v2.Resize((256, 256)), T.CenterCrop(224)])[0][0]
    assert (found.sum(0) == 0).sum() < 50, "nothing was padded"


def test_a_transform_of_others_stands_within_ours() -> None:
    torchvision()
    from torchvision.transforms import v2

    found = dataset([T.RandomApply([v2.RandomHorizontalFlip(1.0)], 1.0), T.CenterCrop(32)])[0][0]
    assert torch.equal(found, dataset([T.RandomHorizontalFlip(1.0), T.CenterCrop(32)])[0][0])


def test_a_function_must_give_pixels() -> None:
    with pytest.raises(ValueError, match="must give uint8 of height x width x channels"):
        dataset([T.Lambda(lambda image: image.astype(np.float32)), T.CenterCrop(8)])[0]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_other_whole_numbers(dtype: torch.dtype) -> None:
    plain = dataset([T.CenterCrop(20)])[0][0]
    found = next(
        iter(DataLoader(dataset([T.CenterCrop(20), T.ToDtype(dtype)]), batch_size=2, num_workers=1))
    )[0]
    assert torch.equal(found[0], plain.to(dtype))
    with pytest.raises(ConfigError, match="scaled to floats only"):
        dataset([T.ToDtype(dtype, scale=True)])


def test_a_bad_image_of_a_decoder_is_left_out_whoever_prepares_it() -> None:
    def decoder(data: bytes) -> Any:
        return np.zeros((8, 8, 3), np.uint16 if data == b"2" else np.uint8)

    def images() -> StagedDataset:
        chain = [T.ToDtype(torch.float32, scale=True)]
        return StagedDataset(lambda index: (str(index).encode(), index), chain, 4, decoder=decoder)

    for workers in (0, 1):
        found = list(DataLoader(images(), batch_size=2, num_workers=workers, on_error="skip"))
        assert torch.cat([targets for _, targets in found]).tolist() == [0, 1, 3]


def test_normalize_takes_arrays_and_refuses_no_spread() -> None:
    chain = [T.ToDtype(torch.float32, scale=True), T.Normalize(np.array([0.5] * 3), np.array([0.5] * 3))]
    assert dataset(chain)[0][0].dtype is torch.float32
    with pytest.raises(ConfigError, match="std must not be 0"):
        T.Normalize([0.5], [0.0])


def test_bytes_may_be_of_any_kind() -> None:
    found = StagedDataset(lambda _: (bytearray(PHOTO), 0), [T.CenterCrop(16)], 1)[0][0]  # type: ignore[arg-type]
    assert torch.equal(found, dataset([T.CenterCrop(16)])[0][0])


@needs_loops
def test_a_file_cut_off_within_the_wanted_part_is_noticed_even_when_fast() -> None:
    part = Window(0, 0, 96, 320)
    right = Encoded(PHOTO, fast=True).part(part)
    for end in range(600, len(PHOTO) - 2, 97):
        try:
            found = Encoded(PHOTO[:end], fast=True).part(part)
        except BadImage:
            continue
        assert np.array_equal(found, right), end


@needs_loops
@pytest.mark.parametrize("factors", [0x00, 0xF0, 0x55])
def test_a_grey_file_with_impossible_factors_is_left_to_libjpeg(factors: int) -> None:
    from penstock import accel

    data = bytearray(jpeg_of(photo(64, 64)[:, :, 0]))
    data[data.index(b"\xff\xc0") + 11] = factors
    assert accel.jpeg(bytes(data), (64, 64), (0, 0, 64, 64), to_the_end=True) is None


# ---- adopted chains


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        path = tmp_path / "photos" / "a" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg_of(photo(90 + number, 120, number)))
    return tmp_path / "photos"


def adopted_chains() -> dict[str, Any]:
    torchvision()
    from torchvision.transforms import v2

    tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.3] * 3)]
    hooked = v2.RandomHorizontalFlip(1.0)
    hooked.forward = lambda image: image
    return {
        "uneven padding": [v2.RandomCrop(80, padding=[4, 9, 1, 0]), *tail],
        "two paddings": [v2.RandomCrop(80, padding=[4, 8]), *tail],
        "padded if needed": [v2.RandomCrop(130, pad_if_needed=True), *tail],
        "a fill per type": [
            v2.RandomCrop(130, pad_if_needed=True, fill={torch.Tensor: 1, "others": 3}),
            *tail,
        ],
        "a tensor in the middle": [v2.CenterCrop(50), v2.Lambda(v2.functional.pil_to_tensor), *tail],
        "with alpha": [v2.Lambda(lambda image: image.convert("RGBA")), v2.RandomCrop(50), v2.ToImage()],
        "a palette": [v2.Lambda(lambda image: image.convert("P")), v2.RandomCrop(50), v2.PILToTensor()],
        "float64": [v2.CenterCrop(50), v2.ToImage(), v2.ToDtype(torch.float64, scale=True)],
        "float16, normalised": [
            v2.CenterCrop(50),
            v2.ToImage(),
            v2.ToDtype(torch.float16, scale=True),
            v2.Normalize([0.5] * 3, [0.3] * 3),
        ],
        "int32": [v2.CenterCrop(50), v2.ToImage(), v2.ToDtype(torch.int32, scale=True)],
        "a patched transform": [hooked, v2.RandomCrop(50), *tail],
    }


NAMES = (
    "uneven padding", "two paddings", "padded if needed", "a fill per type", "a tensor in the middle", "with alpha", "a palette",
    "float64", "float16, normalised", "int32", "a patched transform",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_an_odd_chain_gives_torchvisions_samples(name: str, folder: Path) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    images = ImageFolder(str(folder), v2.Compose(adopted_chains()[name]))
    mine = adopted(images)
    for index in range(3):
        torch.manual_seed(index)
        theirs = images[index][0]
        torch.manual_seed(index)
        ours = (images if mine is None else mine)[index][0]
        assert ours.dtype is theirs.dtype
        assert torch.equal(ours, theirs)


def test_a_chain_that_draws_nothing_decodes_exactly_whatever_is_asked(folder: Path) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    images = ImageFolder(str(folder), v2.Compose([v2.CenterCrop(88), v2.Resize(22), v2.PILToTensor()]))
    fast = adopted(images, fast=True)
    assert fast is not None
    assert torch.equal(fast[0][0], images[0][0])
