"""Two lanes on one batch, without a GPU: the same samples whoever makes them, and the share that is asked for.

The lane's code is that of a GPU, on the CPU; its maker executes programs on the CPU too (the kernels have tests of their own).
"""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")
pytest.importorskip("triton")

from penstock import DataLoader, GpuPrep, ImageFolder
from penstock import transforms as T
from penstock.engine.device import DeviceIterator, Mover
from penstock.errors import DeviceLost
from penstock.gpu.cuda import CudaStation
from penstock.gpu.gate import Gate
from penstock.gpu.parcels import SharedNumbers
from penstock.gpu.prep import Look, Prep, planned
from penstock.gpu.slots import (
    DECODED,
    ENCODED,
    FINISHED,
    Parcel,
    Room,
    left,
    padded,
    slot_bytes,
    tasks_of,
    unpacked,
)
from penstock.kernels.layout import Layout
from penstock.kernels.run import Executor
from penstock.lanes.seeding import seed_all
from penstock.pipeline.decode import decode
from penstock.transforms.cpu import execute
from tests.unit.test_jpeg_parts import jpeg_of, photo

CPU = torch.device("cpu")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(12):
        path = tmp_path / "photos" / f"{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg_of(photo(120 + 7 * number, 150, number), quality=70))
    return tmp_path / "photos"


CHAIN = T.Compose(
    [
        T.RandomResizedCrop(48),
        T.RandomHorizontalFlip(),
        T.RandAugment(),
        T.ToDtype(torch.float32, scale=True),
        T.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]),
    ]
)


class OnTheCpu:
    """What a station does, by the CPU's own executor."""

    def __init__(self, look: Look, trouble: str = "") -> None:
        self.tail, self.trouble = look.tail, trouble
        self.by_cpu = self.held_bytes = 0

    def prepare(self) -> str:
        return self.trouble

    def tasks(self, parcels: Sequence[Parcel], slots: torch.Tensor) -> list[list[Parcel]]:
        return tasks_of(parcels, slots.stride(0), Room(2, 3, 1 << 30, 1 << 30))

    def close(self) -> None:
        pass

    def make(self, parcels: Sequence[Parcel], slots: torch.Tensor, out: torch.Tensor, after: Any) -> None:
        for parcel in parcels:
            if parcel.form == ENCODED:
                program, image = parcel.program, decode(parcel.image.tobytes())
            else:
                program, image = left(parcel)
            out[parcel.ordinal] = self.tail.finish(execute(program, image))


def two(look: Look) -> list[OnTheCpu]:
    return [OnTheCpu(look), OnTheCpu(look)]


def prep_of(dataset: Any, share: float | None, stations: Any = two, **options: Any) -> Prep:
    found = planned(
        dataset,
        default_collate,
        stations,
        CPU,
        **{
            "wanted": GpuPrep(mode="concurrent", share=share),
            "dtype": None,
            "memory_format": None,
            **options,
        },
    )
    assert isinstance(found, Prep), found
    found.dataset._slot = slot_bytes((48, 48), 128 << 10)  # room for all of these photos
    return found


def iterator_of(prep: Prep, workers: int) -> DeviceIterator:
    """A loader with workers, and the lane behind it."""
    loader = DataLoader(prep.dataset, batch_size=4, shuffle=True, seed=5, num_workers=workers)
    mover = Mover(CPU, None, None, False, prep.lane)
    source = loader._new_engine()
    run, asks = loader._begin()
    iterator = DeviceIterator(source, mover)
    loader._bind(iterator, run)
    iterator.begin(asks, run.epoch)
    return iterator


def batches_of(prep: Prep, workers: int) -> list[Any]:
    iterator = iterator_of(prep, workers)
    try:
        return list(iterator)
    finally:
        iterator.close()


@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_samples_are_the_same_whoever_makes_them(share: float, finish: bool, photos: Path) -> None:
    expected = list(DataLoader(ImageFolder(photos, CHAIN), batch_size=4, shuffle=True, seed=5))
    wanted = GpuPrep(mode="concurrent", share=share, finish=finish)
    prep = prep_of(ImageFolder(photos, CHAIN), share, wanted=wanted)
    found = batches_of(prep, 2)
    for (images, targets), (theirs, their_targets) in zip(found, expected, strict=True):
        assert torch.equal(targets, their_targets)
        assert torch.equal(images, theirs)
    lane = prep.lane
    assert lane.samples == 12
    assert 0.0 < share < 1.0 or lane.packed == 12 * share
    assert lane.decoded == (12 - lane.packed if finish else 0)


def test_the_batch_has_the_dtype_and_the_layout_that_were_asked_for(photos: Path) -> None:
    prep = prep_of(ImageFolder(photos, CHAIN), 0.5, dtype=torch.bfloat16, memory_format=torch.channels_last)
    images = batches_of(prep, 1)[0][0]
    assert images.dtype is torch.bfloat16
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_a_parcel_that_is_too_large_is_left_to_the_worker(photos: Path) -> None:
    chain = T.Compose([T.RandomResizedCrop(16), *CHAIN.transforms[3:]])
    prep = prep_of(ImageFolder(photos, chain), 1.0)
    assert len(unpacked(prep.dataset[0][0][None], (16, 16))) == 1
    prep.dataset._slot = slot_bytes((16, 16), 0)
    assert unpacked(prep.dataset[0][0][None], (16, 16)) == []


UNSUITED = {
    "a collate function": (lambda root: ImageFolder(root, CHAIN), list, "collate function of yours"),
    "several sizes": (ImageFolder, default_collate, "several sizes"),
    "several crops": (
        lambda root: ImageFolder(root, T.MultiCrop([(T.RandomResizedCrop(8), 2)])),
        default_collate,
        "several images of one",
    ),
    "something else": (lambda _: [1, 2, 3], default_collate, "not staged"),
}


@pytest.mark.parametrize("what", UNSUITED)
def test_what_cannot_be_shared_is_said(what: str, photos: Path) -> None:
    make, collate, reason = UNSUITED[what]
    found = planned(make(photos), collate, two, CPU, wanted=GpuPrep(), dtype=None, memory_format=None)
    assert isinstance(found, str)
    assert reason in found


class Brighter(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image + 1, target


def test_a_subclass_with_another_getitem_is_not_shared(photos: Path) -> None:
    found = planned(
        Brighter(photos, CHAIN), default_collate, two, CPU, wanted=GpuPrep(), dtype=None, memory_format=None
    )
    assert "a __getitem__ of its own" in str(found)


def test_shared_numbers_are_seen_by_who_unpickles_them() -> None:
    numbers = SharedNumbers()
    other = pickle.loads(pickle.dumps(numbers))
    numbers.set(SharedNumbers.SHARE, 0.75)
    assert other.get(SharedNumbers.SHARE) == 0.75
    other.close()
    numbers.close()


class Interpreted(CudaStation):
    """All of a station but nvJPEG: here the CPU decodes, and Triton's interpreter runs the kernels."""

    def prepare(self) -> str:
        self._executor = Executor(self._like, self._tail)
        self._images = torch.empty(4 << 20, dtype=torch.uint8)
        return ""

    def _decoded(self, parcels: Sequence[Parcel], slots: torch.Tensor) -> list[torch.Tensor]:
        images = [decode(parcel.image.tobytes()) for parcel in parcels]
        return [torch.from_numpy(image.transpose(2, 0, 1).copy()) for image in images]


class Broken(Interpreted):
    def _decoded(self, parcels: Sequence[Parcel], slots: torch.Tensor) -> list[torch.Tensor]:
        raise RuntimeError("nvJPEG does not know this file")

    _copied = _decoded


def stations_of(kind: type[CudaStation]) -> Any:
    return lambda look: [kind(look, torch.empty(1, 3, *look.size), task=8)]


def made_by(
    kind: type[CudaStation], dataset: Any, indices: Sequence[int], *, share: float = 1.0, finish: bool = True
) -> tuple[Any, Any]:
    """One batch, all of it by a station of this kind; and the lane."""
    wanted = GpuPrep(mode="concurrent", share=share, finish=finish)
    prep = prep_of(dataset, share, stations_of(kind), wanted=wanted)
    samples = []
    for index in indices:
        seed_all(index)
        samples.append(prep.dataset[index])
    begun = prep.lane.begin(default_collate(samples))
    prep.lane.make(begun, None).order(None)
    return begun, prep.lane


CHAINS = {
    "crop first": [T.RandomResizedCrop(16), T.RandAugment()],
    "crop last": [T.RandAugment(), T.RandomResizedCrop(16), T.RandomHorizontalFlip()],
    "no crop": [T.Resize((20, 16)), T.ColorJitter(0.4, 0.4, 0.4)],
}


@pytest.mark.parametrize(
    ("share", "fast"),
    [(0.0, False), (0.0, True), (1.0, False)],
    ids=["decoded by workers", "decoded as far as needed", "files"],
)
@pytest.mark.parametrize("name", CHAINS)
def test_the_kernels_make_the_workers_samples(name: str, share: float, fast: bool, photos: Path) -> None:
    dataset = ImageFolder(photos, T.Compose([*CHAINS[name], *CHAIN.transforms[3:]]), fast_decode=fast)
    begun, lane = made_by(Interpreted, dataset, range(2), share=share)
    assert (lane.packed, lane.decoded) == ((2, 0) if share else (0, 2))
    assert lane.stats()["by_cpu"] == 0
    for index in range(2):
        seed_all(index)
        expected, target = dataset[index]
        assert torch.equal(begun.images[index], expected)
        assert begun.others[0][index] == target


def test_all_forms_in_one_batch_are_made_by_the_kernels(photos: Path) -> None:
    """Of three samples one comes as a file, one decoded, one finished."""
    dataset = ImageFolder(photos, T.Compose([*CHAINS["crop first"], *CHAIN.transforms[3:]]))
    prep = prep_of(dataset, 0.0, stations_of(Interpreted))
    samples = []
    for index, (share, finishes) in enumerate([(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)]):
        prep.dataset.numbers.set(SharedNumbers.SHARE, share)
        prep.dataset.numbers.set(SharedNumbers.FINISHES, finishes)
        seed_all(index)
        samples.append(prep.dataset[index])
    prep.lane._wished = True
    begun = prep.lane.begin(default_collate(samples))
    prep.lane.make(begun, None).order(None)
    assert [parcel.form for parcel in begun.parcels] == [ENCODED, DECODED, FINISHED]
    for index in range(3):
        seed_all(index)
        assert torch.equal(begun.images[index], dataset[index][0])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_what_the_kernels_cannot_take_is_made_by_the_cpu(share: float, photos: Path) -> None:
    dataset = ImageFolder(photos, CHAIN)
    begun, lane = made_by(Broken, dataset, [3, 4, 5], share=share)
    for place, index in enumerate([3, 4, 5]):
        seed_all(index)
        assert torch.equal(begun.images[place], dataset[index][0])
    assert lane.stats()["by_cpu"] == 3


def test_a_station_that_fails_is_the_error_of_that_batch_alone(photos: Path) -> None:
    class Failing(OnTheCpu):
        def make(self, parcels: Sequence[Parcel], slots: torch.Tensor, out: torch.Tensor, after: Any) -> None:
            if any(parcel.ordinal == 3 for parcel in parcels):
                raise DeviceLost("the GPU failed")
            super().make(parcels, slots, out, after)

    prep = prep_of(ImageFolder(photos, CHAIN), 1.0, lambda look: [Failing(look)])
    iterator = iterator_of(prep, 1)
    try:
        for _ in range(3):
            with pytest.raises(DeviceLost, match="the GPU failed"):
                next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)
    finally:
        iterator.close()


def test_where_no_station_can_help_workers_prepare_all(photos: Path) -> None:
    prep = prep_of(ImageFolder(photos, CHAIN), None, lambda look: [OnTheCpu(look, "no engines")])
    assert len(batches_of(prep, 1)) == 3
    stats = prep.lane.stats()
    assert (stats["share"], stats["cannot"]) == (0.0, "no engines")


def test_by_itself_the_lane_first_looks_whether_training_waits(photos: Path) -> None:
    prep = prep_of(ImageFolder(photos, CHAIN), None, wanted=GpuPrep(mode="auto"))
    assert prep.lane._ready is None, "no station, and no memory"
    batches_of(prep, 1)
    assert prep.lane.stats()["mode"] == "off"


def test_the_share_is_searched(photos: Path) -> None:
    dataset = ImageFolder(photos, CHAIN)
    dataset.samples = dataset.samples * 20
    dataset.length = len(dataset.samples)
    prep = prep_of(dataset, None)
    assert len(batches_of(prep, 1)) == 60
    assert 0 < prep.lane.packed < 240


def test_dropping_the_lane_ends_its_threads(photos: Path) -> None:
    before = {thread.ident for thread in threading.enumerate()}
    prep = prep_of(ImageFolder(photos, CHAIN), 0.5)
    assert {thread.ident for thread in threading.enumerate()} == before, "workers are forked first"
    prep.lane.begin(default_collate([prep.dataset[0]]))
    threads = [thread for thread in threading.enumerate() if thread.ident not in before]
    assert len(threads) == 2
    del prep
    gc.collect()
    for thread in threads:
        thread.join(5.0)
        assert not thread.is_alive()


def test_a_lane_outlives_an_epoch_but_serves_one_iterator_at_a_time(photos: Path) -> None:
    dataset = ImageFolder(photos, CHAIN)
    prep = prep_of(dataset, 0.5)
    iterator = iterator_of(prep, 1)
    assert prep_of(dataset, 0.5, kept=prep).lane is not prep.lane, "it is in use"
    assert len(list(iterator)) == 3
    iterator.close()
    again = prep_of(dataset, 0.5, kept=prep)
    assert again.lane is prep.lane
    assert len(batches_of(again, 1)) == 3
    other = ImageFolder(photos, T.Compose([T.RandomResizedCrop(32), *CHAIN.transforms[3:]]))
    assert prep_of(other, 0.5, kept=prep).lane is not prep.lane


# ---- in training's pauses only


class Done:
    """An event of a stream that has come to pass, or not."""

    def __init__(self) -> None:
        self.happened = False

    def query(self) -> bool:
        return self.happened


def test_in_idle_mode_the_gate_is_open_while_training_waits_and_its_work_is_done() -> None:
    gate, step = Gate(), Done()
    assert gate.is_open()
    gate.idle_only = True
    assert not gate.is_open()
    gate.opens_after(step)
    assert not gate.is_open(), "the loop waits, but its last step is still in the queue"
    step.happened = True
    assert gate.is_open()
    gate.shuts()
    assert not gate.is_open()
    gate.ending = True
    assert gate.is_open(), "what is under way must come to an end"


def test_an_iteration_that_is_broken_off_in_idle_mode_ends(photos: Path) -> None:
    prep = prep_of(ImageFolder(photos, CHAIN), 1.0)
    iterator = iterator_of(prep, 1)
    next(iterator)
    prep.lane.gate.idle_only = True  # nobody will open it any more
    ended = threading.Thread(target=iterator.close)
    ended.start()
    ended.join(20.0)
    assert not ended.is_alive()


# ---- tasks


@given(
    st.lists(
        st.tuples(
            st.sampled_from([FINISHED, ENCODED, DECODED]),
            st.integers(1, 3),
            st.integers(1, 2000),
            st.integers(0, 5000),
        ),
        max_size=20,
    ),
    st.integers(1, 8),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_tasks_hold_all_parcels_once_and_fit(samples: list[tuple[int, int, int, int]], files: int) -> None:
    nothing = np.zeros(0, np.uint8)
    parcels = [
        Parcel(
            at, form, nothing, 0, (1, width), Layout((b"",) * rows, (0,) * rows, 1, scratch, 0, (1, 1)), b""
        )
        for at, (form, rows, width, scratch) in enumerate(samples)
    ]
    tasks = tasks_of(parcels, 1024, Room(files, 9, 8192, 8192))
    assert sorted(parcel.ordinal for task in tasks for parcel in task) == list(range(len(parcels)))
    for task in tasks:
        files_only = {parcel.form == ENCODED for parcel in task}
        assert len(files_only) == 1
        if len(task) > 1:
            assert sum(len(parcel.layout.rows) for parcel in task) <= 9
            assert sum(padded(parcel.layout.scratch_bytes) for parcel in task) <= 8192
        if len(task) > 1 and files_only == {True}:
            assert len(task) <= files
            assert sum(parcel.pixel_bytes for parcel in task) <= 8192
        elif len(task) > 1:
            assert (task[-1].ordinal - task[0].ordinal + 1) * 1024 <= 8192
