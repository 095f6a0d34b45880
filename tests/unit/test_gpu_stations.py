"""Stations of the GPU lane: the kernels, in Triton's interpreter, make of every form of a sample what workers would have made."""

from __future__ import annotations

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

from penstock import GpuPrep, ImageFolder
from penstock import transforms as T
from penstock.dataset.seeding import seed_all
from penstock.gpu.cuda import CudaStation
from penstock.gpu.slots import (
    DECODED,
    ENCODED,
    FINISHED,
    HEAD,
    HEAD_ROOM,
    KEPT,
    RESIDENT,
    Contents,
    StationRoom,
    StationTask,
    padded,
    tasks_of,
)
from penstock.kernels.run import Executor
from penstock.kernels.table import rows_of
from penstock.pipeline.decode import decode
from tests.lanes_on_cpu import CHAIN, prep_of
from tests.unit.test_jpeg_parts import jpeg_of, photo


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Small ones: the interpreter takes a thousand times as long as a GPU."""
    for number in range(6):
        path = tmp_path / "photos" / f"{number}" / "0.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(jpeg_of(photo(36 + 3 * number, 44, number), quality=80))
    return tmp_path / "photos"


class Interpreted(CudaStation):
    """All of a station but nvJPEG: here the CPU decodes, and Triton's interpreter runs the kernels."""

    def prepare(self) -> str:
        self._executor = Executor(self._like, self._tail)
        self._images = torch.empty(4 << 20, dtype=torch.uint8)
        return ""

    def _decoded(self, task: StationTask) -> Any:
        at, found = 0, []
        for sample in task.gpu_samples():
            planes = torch.from_numpy(decode(sample.image.tobytes()).transpose(2, 0, 1).copy()).flatten()
            self._images[at : at + len(planes)] = planes
            found.append(self._images.data_ptr() + at)
            at += len(planes)
        return np.array(found)


class Broken(Interpreted):
    def _decoded(self, task: StationTask) -> Any:
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
    begun = prep.lane.begin(default_collate(samples), spare_known=True)
    prep.lane.make(begun, None).order(None)
    return begun, prep.lane


CHAINS = {
    "crop first": [T.RandomResizedCrop(16), T.RandAugment()],
    "crop last": [T.RandAugment(), T.RandomResizedCrop(16), T.RandomHorizontalFlip()],
    "no crop": [T.Resize((20, 16)), T.ColorJitter(0.4, 0.4, 0.4)],
    "several rows": [T.RandomResizedCrop(12), T.AugMix()],
}


@pytest.mark.parametrize(
    ("share", "fast"),
    [(0.0, False), (0.0, True), (1.0, False)],
    ids=["decoded by workers", "decoded as far as needed", "files"],
)
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.interpreted
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
        prep.dataset.requests.say(share=share, limit=0.0, finishes=bool(finishes), samples=4)
        seed_all(index)
        samples.append(prep.dataset[index])
    prep.lane._requested = True
    begun = prep.lane.begin(default_collate(samples), spare_known=True)
    prep.lane.make(begun, None).order(None)
    assert begun.contents.forms.tolist() == [ENCODED, DECODED, FINISHED]
    for index in range(3):
        seed_all(index)
        assert torch.equal(begun.images[index], dataset[index][0])


def test_a_table_in_columns_is_the_table_of_its_samples(photos: Path) -> None:
    dataset = ImageFolder(photos, T.Compose([*CHAINS["crop first"], *CHAIN.transforms[3:]]))
    prep = prep_of(dataset, 0.0, stations_of(Interpreted))
    samples = []
    for index in range(6):
        prep.dataset.requests.say(share=0.0, limit=0.0, finishes=index % 3 > 0, samples=6)
        seed_all(index)
        samples.append(prep.dataset[index][0])
    contents = Contents(torch.stack(samples), (16, 16))
    assert set(contents.forms.tolist()) == {FINISHED, DECODED}
    task, images = StationTask(contents, [0, 1, 2, 4, 5]), np.arange(5) * 1_000_000
    columns, one_by_one = task.table(images), rows_of(list(task.samples(images)))
    assert [bytes(row) for row in columns.data] == one_by_one.data
    for name in ("sources", "places", "statistics", "rounds", "slots"):
        assert getattr(columns, name) == type(getattr(columns, name))(getattr(one_by_one, name))
    ends = [*columns.scratch[1:], columns.scratch_bytes]
    needed = [int(contents.scratch[at]) for at in task.ordinals]
    assert all(end - at >= need for at, end, need in zip(columns.scratch, ends, needed, strict=True))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_what_the_kernels_cannot_take_is_made_by_the_cpu(share: float, photos: Path) -> None:
    dataset = ImageFolder(photos, CHAIN)
    begun, lane = made_by(Broken, dataset, [3, 4, 5], share=share)
    for place, index in enumerate([3, 4, 5]):
        seed_all(index)
        assert torch.equal(begun.images[place], dataset[index][0])
    assert lane.stats()["by_cpu"] == 3


@given(
    st.lists(
        st.tuples(
            st.sampled_from([FINISHED, ENCODED, DECODED, RESIDENT, KEPT]),
            st.integers(1, 3),
            st.integers(1, 2000),
            st.integers(0, 5000),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 8),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_tasks_hold_all_samples_once_and_fit(samples: list[tuple[int, int, int, int]], files: int) -> None:
    slots = torch.zeros(len(samples), 1024, dtype=torch.uint8)
    for slot, (form, rows, width, scratch) in zip(slots.numpy(), samples, strict=True):
        head = HEAD.pack(form, 0, 0, 0, 1, width, 0, rows, 0, 1, scratch, 0)
        slot[: len(head)] = memoryview(head)
    contents = Contents(slots, (1, 1))
    tasks = tasks_of(contents, StationRoom(files, 9, 8192, 8192))
    assert sorted(ordinal for task in tasks for ordinal in task.ordinals) == list(range(len(samples)))
    for task in tasks:
        which = task.ordinals
        assert len({(samples[at][0] == ENCODED, samples[at][0] in (RESIDENT, KEPT)) for at in which}) == 1
        assert which == sorted(which)
        if len(which) > 1:
            assert contents.rows[which].sum() <= 9
            assert padded(contents.scratch[which]).sum() <= 8192
        if len(which) > 1 and task.files:
            assert len(which) <= files
            assert contents.pixel_bytes[which].sum() <= 8192
        elif len(which) > 1 and task.singly:
            assert padded(contents.nbytes[which]).sum() <= 8192
        elif len(which) > 1 and not task.kept:
            assert (which[-1] - which[0] + 1) * 1024 <= 8192


@pytest.mark.parametrize("singly", [False, True])
def test_pixels_are_where_the_kernels_are_told(singly: bool) -> None:
    """Copied with all that lies between them, or one by one."""
    slots = torch.zeros(9, 1024, dtype=torch.uint8)
    for number, slot in enumerate(slots.numpy()):
        head = HEAD.pack(DECODED, 300, 0, 0, 10, 10, 0, 1, 0, 1, 0, 0)
        slot[: len(head)] = memoryview(head)
        slot[HEAD_ROOM : HEAD_ROOM + 300] = number
    station = CudaStation.__new__(CudaStation)
    station._images = torch.zeros(8192, dtype=torch.uint8)
    addresses = station._copied(StationTask(Contents(slots, (1, 1)), [1, 4, 7], singly))
    for address, number in zip(addresses - station._images.data_ptr(), [1, 4, 7], strict=True):
        assert (station._images[address : address + 300] == number).all()


def test_a_few_pixels_among_others_do_not_take_all_along() -> None:
    slots = torch.zeros(64, 1024, dtype=torch.uint8)
    for number, slot in enumerate(slots.numpy()):
        head = HEAD.pack(DECODED if number in (5, 60) else RESIDENT, 100, 0, 0, 1, 1, 0, 1, 0, 1, 0, 0)
        slot[: len(head)] = memoryview(head)
    pixels, kept = tasks_of(Contents(slots, (1, 1)), StationRoom(8, 128, 8192, 8192))
    assert (pixels.ordinals, pixels.singly) == ([5, 60], True)
    assert len(kept.ordinals) == 62
