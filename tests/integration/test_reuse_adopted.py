"""`reuse=` with torchvision's own ImageFolder: its chain is known, so its samples can be kept half done like those of ours."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import ConfigError, DataLoader, GpuPrep, Reuse
from penstock import ImageFolder as OurFolder
from penstock import transforms as T
from penstock.dataset.seeding import seed_all
from penstock.pipeline.adopt import adopted
from penstock.pipeline.adopted_images import AdoptedImages
from penstock.plan.renewal import Renewal
from penstock.plan.seeds import op_seed, partial_seed
from penstock.reuse.setup import Reusing
from penstock.transforms.draws import Draws
from tests.deaths import kill_all
from tests.torchvision_here import torchvision, use_convolutions
from tests.unit.test_jpeg_parts import jpeg_of, photo

pytest.importorskip("cv2")
SAMPLES = 24
WORKERS = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    use_convolutions()
    root = tmp_path_factory.mktemp("photos")
    for at in range(SAMPLES):
        path = root / f"{at % 3}" / f"{at:02}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg_of(photo(60 + 3 * (at % 7), 80, at), quality=70))
    return root


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As workers have it: threads that spin beside them only take their time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def v2() -> Any:
    torchvision()
    from torchvision.transforms import v2 as found

    return found


def tail() -> list[Any]:
    return [v2().ToImage(), v2().ToDtype(torch.float32, scale=True), v2().Normalize((0.5,) * 3, (0.25,) * 3)]


def usual() -> list[Any]:
    return [v2().RandAugment(), v2().RandomResizedCrop(24), v2().RandomHorizontalFlip()]


def folder(root: Path, ops: list[Any], **options: Any) -> Any:
    torchvision()
    from torchvision.datasets import ImageFolder

    return ImageFolder(str(root), v2().Compose([*ops, *tail()]), **options)


def loader_of(dataset: Any, workers: int = 0, reuse: Reuse | None = None, **options: Any) -> DataLoader[Any]:
    reuse = reuse or Reuse(times=3, split=1)
    return DataLoader(dataset, 4, shuffle=True, seed=5, num_workers=workers, reuse=reuse, **options)


def epochs(loader: DataLoader[Any], count: int) -> list[list[Any]]:
    return [[(images.clone(), targets.tolist()) for images, targets in loader] for _ in range(count)]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a[0], b[0]) and a[1] == b[1] for a, b in zip(one, other, strict=True)
    )


@WORKERS
def test_batches_of_an_adopted_folder_are_those_of_our_own_with_the_same_ops(
    root: Path, workers: int
) -> None:
    ours = OurFolder(
        root,
        T.Compose(
            [
                T.RandAugment(),
                T.RandomResizedCrop(24),
                T.RandomHorizontalFlip(),
                T.ToImage(),
                T.ToDtype(torch.float32, scale=True),
                T.Normalize((0.5,) * 3, (0.25,) * 3),
            ]
        ),
    )
    found = epochs(loader_of(folder(root, usual()), workers), 4)
    assert all(same(a, b) for a, b in zip(found, epochs(loader_of(ours), 4), strict=True))


def test_a_fill_of_one_number_is_kept_for_all_channels(root: Path) -> None:
    def padded(fill: Any) -> list[Any]:
        return [v2().Resize((40, 40)), v2().Pad(3, fill=fill), v2().RandomCrop(44, padding=2, fill=fill)]

    one = epochs(loader_of(folder(root, padded([9])), 0, Reuse(times=3, split=2)), 1)
    other = epochs(loader_of(folder(root, padded(9)), 0, Reuse(times=3, split=2)), 1)
    assert same(one[0], other[0])


def mixed() -> list[Any]:
    """Transforms that we have no op of."""
    return [
        v2().Resize((40, 50)),
        v2().AugMix(severity=5),
        v2().RandomAffine(20, (0.1, 0.1)),
        v2().RandomApply([v2().RandomInvert(), v2().RandomRotation(20)], p=0.5),
    ]


@pytest.mark.parametrize("split", [0, 2, 4])
def test_batches_are_those_of_loaders_that_never_kept_anything(root: Path, split: int) -> None:
    found = epochs(loader_of(folder(root, mixed()), 2, Reuse(times=3, split=split)), 4)
    for epoch, batches in enumerate(found):
        fresh = loader_of(folder(root, mixed()), 0, Reuse(times=3, split=split))
        fresh.set_epoch(epoch)
        assert same(batches, epochs(fresh, 1)[0]), epoch


def test_the_partial_part_is_torchvisions_drawn_for_the_epoch_of_renewal(root: Path) -> None:
    """Split behind all ops, so that a sample is its partial part alone; made here by torchvision, op by op."""
    torchvision()
    dataset = folder(root, mixed())
    kept = AdoptedImages(adopted(dataset))  # type: ignore[arg-type]
    loader = loader_of(dataset, 0, Reuse(times=3, split=4))
    loader.dataset.samples[:] = [(path, at) for at, (path, _) in enumerate(dataset.samples)]
    renewal = Renewal(SAMPLES, SAMPLES, 3, 5)
    closing = v2().Compose(tail())
    for epoch, batches in enumerate(epochs(loader, 4)):
        for images, keys in batches:
            for image, key in zip(images, keys, strict=True):
                renewed = int(renewal.renewed(np.array([key]), epoch)[0])
                seed = partial_seed(5, renewed, key)
                theirs = dataset.loader(dataset.samples[key][0])
                for number, (op, ours) in enumerate(zip(mixed(), kept.chain.ops, strict=True)):
                    torch.manual_seed(Draws(op_seed(seed, ours.name, number)).bits() >> 1)
                    theirs = op(theirs)
                assert torch.equal(closing(theirs), image)


def test_a_sample_is_read_once_in_three_epochs(root: Path) -> None:
    loader = loader_of(folder(root, usual()))
    epochs(loader, 1)
    before = loader.stats()["reuse"]
    epochs(loader, 3)
    after = loader.stats()["reuse"]
    assert before["entries"] == SAMPLES
    assert after["found"] - before["found"] == 2 * SAMPLES


def test_a_resume_and_a_killed_worker_change_no_batch(root: Path) -> None:
    loader = loader_of(folder(root, mixed()), 2)
    whole = epochs(loader, 3)
    other = loader_of(folder(root, mixed()), 2)
    epochs(other, 1)
    iterator = iter(other)
    first = [next(iterator) for _ in range(2)]
    assert kill_all(other.stats()["worker_pids"][:1])
    state = json.loads(json.dumps(other.state_dict()))
    rest = [(images.clone(), targets.tolist()) for images, targets in iterator]
    assert same([(images, targets.tolist()) for images, targets in first] + rest, whole[1])
    resumed = loader_of(folder(root, mixed()), 0)
    resumed.load_state_dict(state)
    assert same(epochs(resumed, 1)[0], whole[1][2:])
    assert same(epochs(resumed, 1)[0], whole[2])


@WORKERS
def test_a_function_behind_the_split_is_given_pictures_and_draws_by_the_sample(
    root: Path, workers: int
) -> None:
    from PIL import Image

    def perhaps_turned(image: Any) -> Any:
        assert isinstance(image, Image.Image)
        return image.transpose(Image.Transpose.ROTATE_180) if torch.rand(1) < 0.5 else image

    def made() -> Any:
        return folder(root, [v2().RandomRotation(30), v2().Resize((20, 20)), perhaps_turned])

    found = epochs(loader_of(made(), workers, Reuse(times=2, split=2)), 4)
    assert all(
        same(a, b)
        for a, b in zip(found, epochs(loader_of(made(), 0, Reuse(times=2, split=2)), 4), strict=True)
    )
    assert "perhaps_turned anew for each" in loader_of(made(), 0, Reuse(times=2, split=2)).explain()


def test_the_dataset_that_workers_get_can_be_sent_to_them(root: Path) -> None:
    ops = [
        *usual(),
        *mixed(),
        v2().RandomApply([v2().ColorJitter(0.3)]),
        v2().RandomOrder([v2().RandomInvert()]),
    ]
    made = AdoptedImages(adopted(folder(root, ops)))  # type: ignore[arg-type]
    sent = pickle.loads(pickle.dumps(made))
    assert sent.chain.identity == made.chain.identity
    for index in range(3):
        seed_all(index)
        one = made[index]
        seed_all(index)
        assert torch.equal(one[0], sent[index][0])


@WORKERS
def test_transforms_behind_the_tensor_are_called_as_they_are(root: Path, workers: int) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder

    def made() -> Any:
        ops = [*usual(), *tail(), v2().RandomErasing(p=0.5)]
        return ImageFolder(str(root), v2().Compose(ops), target_transform=lambda target: 10 * target)

    found = epochs(loader_of(made(), workers), 3)
    assert all(same(a, b) for a, b in zip(found, epochs(loader_of(made()), 3), strict=True))
    assert {target for _, targets in found[0] for target in targets} == {0, 10, 20}
    plain = epochs(loader_of(folder(root, usual())), 1)[0]
    erased = [bool((a == 0).any()) for (images, _) in found[0] for a in images]
    assert 4 < sum(erased) < SAMPLES - 4
    different = [
        not torch.equal(a, b)
        for (x, _), (y, _) in zip(found[0], plain, strict=True)
        for a, b in zip(x, y, strict=True)
    ]
    assert different == erased


def test_files_that_only_torchvision_reads_are_read(root: Path, tmp_path: Path) -> None:
    """Cut off within the picture, which we refuse and Pillow, told so, fills up."""
    from PIL import ImageFile

    whole = (root / "0" / "00.jpg").read_bytes()
    for at in range(8):
        path = tmp_path / "a" / f"{at}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(whole if at else whole[: len(whole) * 3 // 4])
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        found = epochs(loader_of(folder(tmp_path, usual())), 2)
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False
    assert sum(len(targets) for _, targets in found[1]) == 8


def test_split_auto_disk_and_explain_know_the_ops_by_name(root: Path, tmp_path: Path) -> None:
    ops = [v2().Resize(50), *usual()]
    loader = loader_of(folder(root, ops), 0, Reuse(times=3, store="disk", path=tmp_path, persistent=True))
    epochs(loader, 1)
    said = loader.explain()
    assert "is done for 3 uses (reuse)" in said
    assert "for later runs with the same data, ops and seed too" in said
    again = loader_of(folder(root, ops), 0, Reuse(times=3, store="disk", path=tmp_path, persistent=True))
    epochs(again, 1)
    assert again.stats()["reuse"]["entries"] == SAMPLES
    assert again.stats()["reuse"]["missed"] == 0
    named = loader_of(folder(root, ops), 0, Reuse(times=3, split="RandomResizedCrop"))
    assert named.stats()["reuse"]["split"] == 2


def test_what_cannot_be_kept_is_said_with_its_reason(root: Path) -> None:
    with pytest.raises(ConfigError, match="adopt=False"):
        loader_of(folder(root, usual()), adopt=False)
    with pytest.raises(ConfigError, match="a function of yours before other ops"):
        loader_of(folder(root, [v2().Resize((30, 30)), lambda image: image, v2().RandomCrop(8)]))
    with pytest.raises(ConfigError, match="cannot be kept"):
        loader_of(folder(root, [v2().Resize((30, 30)), lambda image: image]), 0, Reuse(times=3, split=2))
    dataset = folder(root, usual())
    loader = loader_of(dataset)
    dataset.transform = dataset.transforms.transform = v2().Compose([v2().Resize((4, 4)), *tail()])
    with pytest.raises(ConfigError, match="another transform"):
        iter(loader)


def test_on_the_device_torchvisions_draws_must_stand_behind_the_split(root: Path) -> None:
    """What is gone from there is made again beside training, whose generator torchvision would draw from."""
    made = AdoptedImages(adopted(folder(root, mixed())))  # type: ignore[arg-type]
    lane = GpuPrep(mode="concurrent")
    with pytest.raises(ConfigError, match="AugMix, RandomAffine before the split"):
        Reusing(Reuse(times=3, split=3, store="device"), made, lane)
    assert Reusing(Reuse(times=3, split=1, store="device"), made, lane).split == 1


def test_without_reuse_nothing_changes(root: Path) -> None:
    once = epochs(loader_of(folder(root, usual()), 0, Reuse(times=1)), 2)
    plain = DataLoader(folder(root, usual()), 4, shuffle=True, seed=5)
    assert all(same(a, b) for a, b in zip(once, epochs(plain, 2), strict=True))
