"""Samples that are drawn first, and have their pixels made later: the same bytes, errors and order as without that."""

from __future__ import annotations

import gc
import shutil
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

pytest.importorskip("PIL.Image")
pytest.importorskip("cv2")

from penstock import DataLoader, ImageFolder, Reuse, accel
from penstock import transforms as T
from penstock.config import GpuPrep
from penstock.gpu.prep import Prep, planned
from penstock.gpu.slots import HEAD_ROOM
from penstock.pipeline.deferred import Deferred
from penstock.pipeline.header import BadImage
from penstock.plan.renewal import Renewal
from penstock.reuse.images import Reused
from penstock.reuse.stores.memory import MemoryStore
from penstock.worker.prepare import Preparer, Recipe, Where
from tests.unit.test_jpeg_parts import jpeg_of, photo

needs_loops = pytest.mark.skipif(
    accel.compiled() is None, reason="without compiled loops nothing is done together"
)
SAMPLES = 12
FLOATS = [T.ToDtype(torch.float32, scale=True), T.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])]
CROP = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
CHAINS: dict[str, list[Any]] = {
    "crop at the end": [T.RandAugment(), *CROP, *FLOATS],
    "cubic": [T.RandAugment(), T.RandomResizedCrop(32, interpolation=T.InterpolationMode.BICUBIC), *FLOATS],
    "crop at the beginning": [*CROP, T.RandAugment(), *FLOATS],
    "as bytes": [T.RandAugment(), *CROP],
    "divided": [T.RandAugment(), *CROP, T.ToTensor()],
    "grey": [T.RandAugment(), *CROP, T.Grayscale(), T.ToDtype(torch.float32, scale=True)],
    "without resizing": [T.RandAugment(), T.RandomCrop(32), *FLOATS],
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(2)
    (root / "a").mkdir()
    for number in range(SAMPLES):
        size = (32, 32) if number == 5 else (int(rng.integers(40, 90)), int(rng.integers(40, 90)))
        (root / "a" / f"{number:02}.jpg").write_bytes(jpeg_of(photo(*size, number)))
    return root


def kept(root: Path, chain: list[Any], max_bytes: int = 8 << 20, kept: int = SAMPLES) -> Reused:
    renewal = Renewal(SAMPLES, kept, 3, seed=5)
    return Reused(ImageFolder(root, chain), 1, renewal, MemoryStore(renewal, max_bytes))


def in_slots(dataset: Any, stations: Any = None) -> Any:
    """As workers have it where a device makes floats of their pixels."""
    wanted, device = GpuPrep.of("off" if stations is None else "concurrent"), torch.device("cpu")
    found = planned(dataset, default_collate, stations, device, wanted=wanted, dtype=None, memory_format=None)
    assert isinstance(found, Prep), found
    return found.dataset


def preparer(dataset: Any, on_error: str = "raise") -> Preparer:
    return Preparer(
        Recipe(dataset=dataset, collate_fn=default_collate, auto_collation=True, seed=3, on_error=on_error)
    )


def written(
    dataset: Any,
    epoch: int,
    keys: list[int],
    *,
    deferred: bool = True,
    on_sample: Callable[[int], None] = lambda _: None,
) -> list[torch.Tensor]:
    """Samples as a worker writes them."""
    slots: dict[int, torch.Tensor] = {}
    prepares = preparer(dataset, "raise" if deferred else "skip")
    prepares.on_sample = on_sample
    for ordinal, (unfinished, _) in prepares.samples(Where(epoch, 0, 0, 1, 0), keys, unfinished=True):
        slots[ordinal] = torch.full(unfinished.shape, 99, dtype=unfinished.dtype)
        unfinished.write(slots[ordinal])
    return [slots[at] for at in range(len(keys))]


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("reuse", ["all", "some", "none"])
def test_samples_are_the_same_as_when_each_is_prepared_at_once(
    photos: Path, name: str, reuse: str, slots: bool
) -> None:
    if slots and name == "grey":
        pytest.skip("a device is given colours")
    chain = CHAINS[name]
    some: dict[str, Any] = {"all": SAMPLES, "some": SAMPLES // 2}
    ours, others = (
        ImageFolder(photos, chain) if reuse == "none" else kept(photos, chain, kept=some[reuse])
        for _ in range(2)
    )
    one, other = (in_slots(ours), in_slots(others)) if slots else (ours, others)
    assert preparer(one)._deferred() is not None
    for epoch in range(5):
        keys = np.random.default_rng(epoch).permutation(SAMPLES).tolist()
        found = written(one, epoch, keys)
        expected = written(other, epoch, keys, deferred=False)
        assert all(map(torch.equal, found, expected))
    if isinstance(ours, Reused):
        assert ours.store.stats()["found"] > 0


def is_untouched(slot: torch.Tensor) -> bool:
    """Heads of slots do not depend on pixels."""
    return bool(((slot[HEAD_ROOM:] if slot.dim() == 1 else slot) == 99).all())


def taken_away(store: Any) -> None:
    """All that is kept is something else now."""
    store.chunks[:, 0] += 1
    store._bytes[store._data :] = 77


@needs_loops
@pytest.mark.parametrize("in_place", [lambda dataset: dataset, in_slots], ids=["tensors", "slots"])
def test_nothing_is_written_before_all_are_drawn_and_nothing_wrong_ever_is(
    photos: Path, monkeypatch: pytest.MonkeyPatch, in_place: Callable[[Any], Any]
) -> None:
    """What is kept is taken away when all are drawn: what the worker reads there is something else then."""
    dataset, plain = kept(photos, CHAINS["crop at the end"]), kept(photos, CHAINS["crop at the end"], 0)
    ours, theirs = in_place(dataset), in_place(plain)
    keys = list(range(SAMPLES))
    written(ours, 0, keys)
    slots, rest, finish, gone = list[torch.Tensor](), Deferred.rest, accel.finish, list[int]()

    def taken_away_first(deferred: Deferred) -> Any:
        assert all(map(is_untouched, slots))
        taken_away(dataset.store)
        return rest(deferred)

    def finished(rows: Any) -> list[int]:
        found = finish(rows)
        if len(rows) > 1:
            gone.extend(found)
            assert all(map(is_untouched, slots)), "what was read was not what was kept"
        return found

    monkeypatch.setattr(Deferred, "rest", taken_away_first)
    monkeypatch.setattr(accel, "finish", finished)
    for _, (unfinished, _) in preparer(ours).samples(Where(1, 0, 0, 1, 0), keys, unfinished=True):
        slots.append(torch.full(unfinished.shape, 99, dtype=unfinished.dtype))
        unfinished.write(slots[-1])
    assert len(gone) == SAMPLES * 2 // 3, "those that were found were made again"
    monkeypatch.undo()
    assert all(map(torch.equal, slots, written(theirs, 1, keys)))
    assert dataset.store.stats()["entries"] == SAMPLES, "and kept again"


@needs_loops
def test_of_samples_that_are_gone_the_one_that_fails_is_blamed(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each when its turn comes, among those that were never kept."""
    shutil.copytree(photos, tmp_path / "photos")
    dataset, rest, blamed = kept(tmp_path / "photos", CHAINS["crop at the end"]), Deferred.rest, list[int]()
    keys = list(range(SAMPLES))
    found = [key for key in keys if dataset.renewal.of(key, 1).renewed == 0]
    gone, anew = found[-1], next(key for key in keys if key not in found)
    written(dataset, 0, keys)
    for bad in (gone, anew):
        path = tmp_path / "photos" / "a" / f"{bad:02}.jpg"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    def taken_away_first(deferred: Deferred) -> Any:
        taken_away(dataset.store)
        return rest(deferred)

    monkeypatch.setattr(Deferred, "rest", taken_away_first)
    for order, first in ((found, gone), ([gone, anew], gone), ([anew, gone], anew)):
        with pytest.raises(BadImage) as caught:
            written(dataset, 1, order, on_sample=blamed.append)
        assert caught.value.__notes__ == [f"penstock: {dataset.name(first)}"]
        assert blamed[-1] == order.index(first)
        with pytest.MonkeyPatch.context() as before:
            before.setattr(Deferred, "rest", rest)
            written(dataset, 0, [key for key in keys if key not in (gone, anew)])


def test_a_sample_that_comes_twice_in_a_task_is_kept_once(photos: Path) -> None:
    """A second entry would take room until both are renewed."""
    ours, others = kept(photos, CHAINS["crop at the end"]), kept(photos, CHAINS["crop at the end"])
    keys = [1, 2, 1, 1, 2]
    assert all(map(torch.equal, written(ours, 0, keys), written(others, 0, keys, deferred=False)))
    assert ours.store.stats()["found"] == others.store.stats()["found"] == 3
    assert ours.store._filling == others.store._filling  # type: ignore[union-attr]


def test_files_go_with_their_samples(photos: Path) -> None:
    """Not when the interpreter looks for what refers to itself."""
    dataset, seen = ImageFolder(photos, CHAINS["crop at the end"]), list[weakref.ref[Deferred]]()
    gc.disable()
    try:
        samples = preparer(dataset)
        made, defers = list[int](), dataset.deferred

        def deferred() -> Deferred | None:
            seen.append(weakref.ref(found := defers()))  # type: ignore[arg-type]
            return found

        dataset.deferred = deferred  # type: ignore[method-assign]
        for _, (unfinished, _) in samples.samples(Where(0, 0, 0, 1, 0), [0, 1, 2], unfinished=True):
            unfinished.write(torch.empty(unfinished.shape, dtype=unfinished.dtype))
            made.append(1)
        del unfinished
        assert len(made) == 3
        assert len(seen) == 1
        assert seen[0]() is None
    finally:
        gc.enable()


def test_the_first_of_several_bad_samples_is_the_error(photos: Path, tmp_path: Path) -> None:
    """Though the header of a later one is looked at before the pixels of the first."""
    (tmp_path / "a").mkdir()
    for path in (photos / "a").iterdir():
        data = path.read_bytes()
        if path.name == "03.jpg":
            data = data[: len(data) // 2]
        (tmp_path / "a" / path.name).write_bytes(b"nothing" if path.name == "05.jpg" else data)
    dataset = ImageFolder(tmp_path, [T.CenterCrop(40), *FLOATS])
    with pytest.raises(BadImage) as caught:
        written(dataset, 0, list(range(SAMPLES)))
    assert caught.value.__notes__ == [f"penstock: {dataset.name(3)}"]
    assert dataset.name(5) not in "".join(traceback.format_exception(caught.value)), (
        "that is no part of its story"
    )
    with pytest.raises(BadImage) as caught:
        written(dataset, 0, [0, 5, 3])
    assert caught.value.__notes__ == [f"penstock: {dataset.name(5)}"]
    with pytest.raises(IndexError, match="sample 12 of 12"):
        written(dataset, 0, [0, SAMPLES])


@pytest.mark.parametrize("reuse", [None, Reuse(times=3, split=1)])
def test_batches_are_the_same_with_workers_and_without(photos: Path, reuse: Reuse | None) -> None:
    def batches(workers: int) -> list[Any]:
        loader: DataLoader[Any] = DataLoader(
            ImageFolder(photos, CHAINS["crop at the end"]),
            5,
            shuffle=True,
            seed=3,
            num_workers=workers,
            reuse=reuse,
        )
        return [batch for _ in range(4) for batch in loader]

    for found, expected in zip(batches(2), batches(0), strict=True):
        assert all(map(torch.equal, found, expected))


def test_a_sample_of_another_size_is_the_error_of_its_turn(photos: Path) -> None:
    """As of those that are not drawn first."""
    slots = in_slots(ImageFolder(photos, [T.Resize((24, 24)), *FLOATS]))
    slots._source.chain = ImageFolder(photos, FLOATS).chain
    with pytest.raises(RuntimeError, match=r"equal size, but got \[3, 24, 24\] in other samples and \[3, "):
        written(slots, 0, [5])
    slots._source.chain = ImageFolder(photos, [T.Resize((24, 24)), T.Grayscale()]).chain
    with pytest.raises(RuntimeError, match="a sample has 1 channels where others have 3"):
        written(slots, 0, [5])


def test_where_a_device_does_more_samples_are_not_drawn_first(photos: Path) -> None:
    dataset = ImageFolder(photos, CHAINS["crop at the end"])
    assert preparer(in_slots(dataset))._deferred() is not None
    assert preparer(in_slots(dataset, lambda _: []))._deferred() is None


def test_datasets_with_code_of_the_users_are_not_deferred(photos: Path) -> None:
    """It may draw from generators that are seeded for the sample at hand."""
    assert preparer(ImageFolder(photos, CROP))._deferred() is not None
    assert preparer(ImageFolder(photos, CROP), "skip")._deferred() is None
    assert preparer(ImageFolder(photos, [*CROP, T.Lambda(lambda image: image)]))._deferred() is None
    assert preparer(ImageFolder(photos, CROP, target_transform=float))._deferred() is None
    for name in ("read", "decoder"):
        changed = ImageFolder(photos, CROP)
        setattr(changed, name, lambda given: given)
        assert preparer(changed)._deferred() is None
