"""Two lanes on one batch, without a GPU: the same samples whoever makes them, and the share that is asked for."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")
pytest.importorskip("triton")

from penstock import DataLoader, GpuPrep, ImageFolder
from penstock import transforms as T
from penstock.client.gpu_choice import helped
from penstock.client.places import DeviceSide
from penstock.config import LoaderConfig
from penstock.errors import ConfigError, DeviceLost
from penstock.gpu.gate import Gate
from penstock.gpu.lane import YOUNG
from penstock.gpu.pending import PendingBatch
from penstock.gpu.prep import looked, planned
from penstock.gpu.requests import AS_THERE_IS_ROOM, Requests
from penstock.gpu.slots import (
    Contents,
    StationTask,
    slot_bytes,
)
from penstock.pipeline.adopt import adopted
from penstock.pipeline.header import BadImage
from penstock.plan.renewal import Renewal
from penstock.reuse.images import Reused
from penstock.reuse.stores.memory import MemoryStore
from penstock.worker.prepare import Recipe
from tests.lanes_on_cpu import CHAIN, CPU, OnTheCpu, batches_of, iterator_of, photos, prep_of, two
from tests.torchvision_here import torchvision

__all__ = ["photos"]


@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize(("kept", "share"), [(12, 0.0), (12, 1.0), (5, 0.3), (0, 1.0)])
def test_samples_that_were_partly_kept_are_the_same_whoever_finishes_them(
    kept: int, share: float, finish: bool, photos: Path
) -> None:
    renewal = Renewal(12, kept, 3, seed=5)

    def reused() -> Reused:
        return Reused(ImageFolder(photos, CHAIN), 1, renewal, MemoryStore(renewal, 16 << 20))

    loader: Any = DataLoader(reused(), batch_size=4, shuffle=True, seed=5)
    prep = prep_of(reused(), share, wanted=GpuPrep(mode="concurrent", share=share, finish=finish))
    for _ in range(2):  # what is kept by then is found in the second round
        loader.set_epoch(0)
        for (images, targets), (theirs, their_targets) in zip(batches_of(prep, 2), loader, strict=True):
            assert torch.equal(targets, their_targets)
            assert torch.equal(images, theirs)
    assert prep.lane.decoded == (24 - prep.lane.packed if finish else 0)
    assert prep.lane.packed <= 2 * (12 - kept)  # of what is kept there is no file


@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_samples_are_the_same_whoever_makes_them(
    share: float, finish: bool, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.gpu.lane.COPIED_AT_ONCE", 200_000)  # a batch comes in several copies
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


def test_a_sample_that_is_too_large_is_left_to_the_worker(photos: Path) -> None:
    chain = T.Compose([T.RandomResizedCrop(16), *CHAIN.transforms[3:]])
    prep = prep_of(ImageFolder(photos, chain), 1.0)
    assert Contents(prep.dataset[0][0][None], (16, 16)).has_gpu_samples
    prep.dataset._slot = slot_bytes((16, 16), 0)
    assert not Contents(prep.dataset[0][0][None], (16, 16)).has_gpu_samples


def test_a_sample_of_another_size_is_torchs_error(photos: Path) -> None:
    dataset = ImageFolder(photos, T.Compose([T.Resize(40), *CHAIN.transforms[3:]]))
    found = looked(dataset)
    assert found == "its samples become images of several sizes"
    prep = prep_of(ImageFolder(photos, CHAIN), 0.0)
    prep.dataset._source = dataset  # as if none of the others had been looked at
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        prep.dataset[0]


def test_an_index_beyond_the_dataset_is_an_error(photos: Path) -> None:
    with pytest.raises(IndexError, match="sample 99 of 12"):
        prep_of(ImageFolder(photos, CHAIN), 0.0).dataset[99]


def test_a_damaged_sample_does_not_keep_the_others_from_being_looked_at(photos: Path) -> None:
    (photos / "0" / "0.jpg").write_bytes(b"")
    prep = prep_of(ImageFolder(photos, CHAIN), 0.0)
    with pytest.raises(BadImage) as caught:
        prep.dataset[0]
    assert "0.jpg" in str(caught.value.__notes__)


def test_what_torchvision_forgives_is_made_of_its_pixels(photos: Path) -> None:
    torchvision()
    from PIL import Image
    from torchvision import datasets
    from torchvision.transforms import v2

    with Image.open(photos / "0" / "0.jpg") as image:
        image.save(photos / "0" / "0.bmp")
    (photos / "0" / "0.jpg").unlink()
    tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    theirs = datasets.ImageFolder(str(photos), v2.Compose([v2.RandomResizedCrop(48), *tail]))
    prep = prep_of(adopted(theirs), 0.0)
    assert theirs.samples[0][0].endswith("0.bmp")
    torch.manual_seed(3)
    expected, _ = theirs[0]
    torch.manual_seed(3)
    begun = prep.lane.begin(default_collate([prep.dataset[0]]), spare_known=True)
    prep.lane.make(begun, None).order(None)
    assert torch.equal(begun.images[0], expected)


def test_looking_at_a_dataset_draws_nothing_from_the_programs_generators(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Any] = []
    monkeypatch.setattr(
        "penstock.gpu.cuda.prep_for", lambda *args, **_: looks.append(looked(args[0])) or "no"
    )
    dataset = ImageFolder(photos, CHAIN)
    torch.manual_seed(5)
    recipe = Recipe(
        dataset=dataset, collate_fn=default_collate, auto_collation=True, seed=0, on_error="raise"
    )
    helped(LoaderConfig(device="cuda"), recipe, DeviceSide(), shuffles=True)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert looks
    assert torch.equal(after, torch.rand(1))


def test_lanes_leave_no_descriptor(photos: Path) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    prep_of(ImageFolder(photos, CHAIN), 0.5)
    before = descriptors()
    for _ in range(3):
        prep_of(ImageFolder(photos, CHAIN), 0.5)
    assert descriptors() == before


UNSUITED = {
    "grey": (
        lambda root: ImageFolder(root, [T.RandomResizedCrop(8), T.Grayscale()]),
        default_collate,
        "grey images",
    ),
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


def test_requests_are_seen_by_who_unpickles_them() -> None:
    requests = Requests()
    other = pickle.loads(pickle.dumps(requests))
    requests.say(share=0.75, limit=3.0, finishes=True, samples=4)
    assert (other.share, other.limit, other.finishes) == (0.75, 3.0, True)
    for _ in range(3):
        assert requests.has_room()
        other.left(5)
    assert not requests.has_room()
    requests.came(5, 2, lasting=9)
    assert other.has_room(), "one that was counted did not come: its worker was lost"
    requests.made(5, 2)
    requests.made(5, 1)
    other.left(6)
    assert requests.has_room()


def test_files_of_a_batch_that_never_comes_are_forgotten() -> None:
    requests = Requests()
    requests.say(share=AS_THERE_IS_ROOM, limit=2.0, finishes=True, samples=4)
    requests.left(1)
    requests.left(1)
    for number in range(9):
        assert not requests.has_room()
        requests.came(100 + number, 0, lasting=8)
    requests.came(200, 0, lasting=8)
    assert requests.has_room()


def test_what_an_iteration_that_was_broken_off_has_left_does_not_count_in_the_next(photos: Path) -> None:
    dataset = ImageFolder(photos, CHAIN)
    dataset.samples = dataset.samples * 5
    dataset.length = len(dataset.samples)
    prep = prep_of(dataset, None)
    for entry in range(1000):
        prep.dataset.requests.left(entry)
    iterator = iterator_of(prep, 1)
    try:
        for _ in range(10):
            next(iterator)
    finally:
        iterator.close()
    assert prep.lane.packed > 0


def test_a_short_last_batch_does_not_make_the_next_ones_short_of_room(photos: Path) -> None:
    lane = prep_of(ImageFolder(photos, CHAIN), None).lane
    limits = []
    for samples in (256, 256, 3):
        lane.taken(PendingBatch(samples=samples, tasks=0, copied=None), time.perf_counter(), 0, 8)
        limits.append(lane.stats()["limit"])
    assert limits[2] >= limits[1] > 200


def test_the_first_batches_of_an_iteration_say_nothing(photos: Path) -> None:
    lane, seen = prep_of(ImageFolder(photos, CHAIN), None).lane, []
    lane._modes.on_batch = seen.append
    for _ in range(YOUNG + 3):
        lane.taken(PendingBatch(samples=4, tasks=0, copied=None), time.perf_counter(), 0, 8)
    assert len(seen) == 4
    lane.belong_to(prep_of)
    lane.taken(PendingBatch(samples=4, tasks=0, copied=None), time.perf_counter(), 0, 8)
    assert len(seen) == 4


def test_what_counts_as_dear_is_searched_by_all_workers_together() -> None:
    requests = Requests()
    other = pickle.loads(pickle.dumps(requests))
    requests.say(share=AS_THERE_IS_ROOM, limit=1.0, finishes=True, samples=4)
    first = requests.dear
    for _ in range(100):
        other.has_room()
    assert requests.dear > first
    requests.left(0)
    for _ in range(100):
        other.has_room()
    assert requests.dear < first


def test_a_station_that_fails_is_the_error_of_that_batch_alone(photos: Path) -> None:
    class Failing(OnTheCpu):
        def make(self, task: StationTask, out: torch.Tensor, after: Any) -> None:
            if 3 in task.ordinals:
                raise DeviceLost("the GPU failed")
            super().make(task, out, after)

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


class Raises(OnTheCpu):
    def prepare(self) -> str:
        raise OSError("no compiler")


@pytest.mark.parametrize(
    ("kind", "reason"), [(partial(OnTheCpu, trouble="no engines"), "no engines"), (Raises, "no compiler")]
)
def test_where_no_station_can_help_workers_prepare_all(kind: Any, reason: str, photos: Path) -> None:
    prep = prep_of(ImageFolder(photos, CHAIN), None, lambda look: [kind(look)])
    began = time.monotonic()
    assert len(batches_of(prep, 1)) == 3
    assert time.monotonic() - began < 30.0
    stats = prep.lane.stats()
    assert (stats["limit"], stats["finishes"]) == (0.0, False)
    assert reason in stats["cannot"]


def test_a_fixed_share_in_idle_mode_waits_for_pauses_too(photos: Path) -> None:
    wanted = GpuPrep(mode="idle", share=0.5)
    assert prep_of(ImageFolder(photos, CHAIN), 0.5, wanted=wanted).lane.gate.idle_only


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


def test_on_a_card_stations_take_their_memory_when_training_has_its_own(photos: Path) -> None:
    prep = prep_of(ImageFolder(photos, CHAIN), None)
    prep.lane._is_late = True  # as on a CUDA device
    prep.lane._request()
    batch = default_collate([prep.dataset[0]])
    prep.lane.begin(batch, spare_known=False)
    assert prep.lane._ready is None
    assert not prep.dataset.requests.limit, "workers leave nothing to stations that are not there"
    assert not prep.dataset.requests.finishes
    prep.lane.begin(batch, spare_known=True)
    prep.lane._request()
    assert prep.lane._ready.can_help
    assert prep.dataset.requests.limit
    assert prep.dataset.requests.finishes


def test_dropping_the_lane_ends_its_threads(photos: Path) -> None:
    before = {thread.ident for thread in threading.enumerate()}
    prep = prep_of(ImageFolder(photos, CHAIN), 0.5)
    assert {thread.ident for thread in threading.enumerate()} == before, "workers are forked first"
    prep.lane.begin(default_collate([prep.dataset[0]]), spare_known=True)
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
    gate.asked_by("an iterator")
    gate.left_by("another that ended late")
    assert not gate.is_open()
    gate.left_by("an iterator")
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


@pytest.mark.usefixtures("cuda_seems_to_be_here")
def test_help_that_was_asked_for_needs_somebody_to_help(photos: Path) -> None:
    loader: Any = DataLoader(ImageFolder(photos, CHAIN), 2, gpu_prep="concurrent", device="cuda")
    with pytest.raises(ConfigError, match="needs workers to help"):
        iter(loader)
