"""Samples that are kept on the device, without one: the bytes of batches do not depend on what lies there, whatever becomes of it."""

from __future__ import annotations

import gc
import logging
import os
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")
pytest.importorskip("triton")

from penstock import ConfigError, DataLoader, GpuPrep, ImageFolder, Reuse, StagedDataset
from penstock import transforms as T
from penstock.client.device import DeviceIterator
from penstock.client.mover import Mover
from penstock.dataset.offers import offered
from penstock.dataset.seeding import seed_all
from penstock.gpu.slots import DECODED, FINISHED, KEPT, RESIDENT
from penstock.plan.renewal import Renewal
from penstock.reuse.on_device import ReusedOnDevice
from penstock.reuse.stores.device import DeviceStore
from tests.deaths import kill_all
from tests.lanes_on_cpu import CHAIN, CPU, batches_of, iterator_of, photos
from tests.residents_on_cpu import ROOM, SAMPLES, expected, folder_of, on_device, prepared, same
from tests.unit.test_gpu_stations import Broken, Interpreted, stations_of

__all__ = ["photos"]
pytestmark = pytest.mark.usefixtures("cuda_seems_to_be_here")


# ---- bytes


@pytest.mark.parametrize(
    ("times", "split", "kept", "share", "workers"),
    [(2, 1, 12, 0.0, 1), (3, 0, 12, 0.0, 2), (3, 1, 12, None, 2), (3, 3, 12, 1.0, 1), (3, 1, 7, 0.5, 2)],
)
def test_batches_are_those_of_a_loader_that_keeps_nothing(
    times: int, split: int, kept: int, share: float | None, workers: int, photos: Path
) -> None:
    dataset = on_device(photos, times=times, split=split, kept=kept)
    prep = prepared(dataset, share)
    before = 0
    for epoch in range(5):
        assert same(batches_of(prep, workers, epoch), expected(photos, dataset, epoch)), epoch
        found = prep.lane.resident - before
        before = prep.lane.resident
        most = 0 if epoch == 0 else SAMPLES - dataset.renewal.misses(epoch)
        # Where the lane takes what it has room for, what leaves as a file is not kept.
        assert found <= most if share is None else found == most, epoch
    stats, lane = dataset.store.stats(), prep.lane.stats()
    assert stats["found"] == before == lane["resident"] > 0
    assert stats["refused"] == lane["by_cpu"] == 0
    assert stats["entries"] <= kept
    assert 0 < stats["bytes"] <= stats["held_bytes"] <= stats["max_bytes"] == ROOM


def test_what_lies_on_the_device_is_neither_read_nor_sent(photos: Path) -> None:
    dataset = on_device(photos)
    prep = prepared(dataset)
    batches_of(prep, 1, 0)
    dataset.schedule.begin(1, range(SAMPLES))
    sample = next(at for at in range(SAMPLES) if dataset.schedule.of(at).renewed == 0)
    path, _ = dataset.source.samples[sample]
    os.unlink(path)
    slot, target = prep.dataset[sample]
    assert int(slot[:4].view(torch.int32)) == RESIDENT
    assert target == dataset.source.targets[sample]


def test_memory_comes_when_training_has_its_own(photos: Path) -> None:
    dataset = on_device(photos)
    prep = prepared(dataset, opened=False)
    assert not dataset.store.is_open
    batch = default_collate([prep.dataset[at] for at in range(4)])
    assert set(batch[0][:, 0].tolist()) == {DECODED}, "nothing has a place yet"
    prep.lane.begin(batch, spare_known=False)
    assert not dataset.store.is_open, "with a fixed share stations are ready by now"
    prep.lane.begin(batch, spare_known=True)
    assert dataset.store.is_open
    assert set(default_collate([prep.dataset[at] for at in range(12)])[0][:, 0].tolist()) == {DECODED, KEPT}


# ---- faults


def test_killed_workers_leave_no_trace(photos: Path) -> None:
    many = folder_of(photos, copies=8)
    renewal = Renewal(len(many), len(many), 3, seed=5)
    dataset = ReusedOnDevice(many, 1, renewal, DeviceStore(renewal, ROOM))
    prep, killed = prepared(dataset), 0
    for epoch in range(4):
        iterator, found = iterator_of(prep, 2, epoch), []
        try:
            for number, batch in enumerate(iterator):
                found.append(batch)
                if number in (
                    epoch,
                    8 + epoch,
                ):  # no more: a sample whose workers die three times is an error
                    killed += kill_all(iterator._source._counters.live().worker_pids)
        finally:
            iterator.close()
        assert same(found, expected(photos, dataset, epoch, copies=8)), epoch
    assert killed >= 4
    assert prep.lane.resident > 0


@pytest.mark.parametrize("room", [0, 1 << 10, 60 << 10])
def test_a_small_store_refuses_and_bytes_are_the_same(room: int, photos: Path) -> None:
    dataset = on_device(photos, room=room)
    prep = prepared(dataset)
    for epoch in range(4):
        assert same(batches_of(prep, 2, epoch), expected(photos, dataset, epoch)), epoch
    stats = dataset.store.stats()
    assert stats["held_bytes"] <= room
    assert (stats["refused"] > 0) is (room > 0)
    assert (prep.lane.resident > 0) is (room > 50 << 10)


def no_memory(nbytes: int) -> torch.Tensor:
    raise torch.OutOfMemoryError("training needs it")


def test_without_memory_on_the_device_training_goes_on(
    photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = on_device(photos)
    with caplog.at_level(logging.WARNING, "penstock"):
        prep = prepared(dataset, allocate=no_memory)
        for epoch in range(3):
            assert same(batches_of(prep, 1, epoch), expected(photos, dataset, epoch)), epoch
    (said,) = [record.getMessage() for record in caplog.records if "max_bytes" in record.getMessage()]
    assert "nothing is kept there" in said
    assert dataset.store.stats()["held_bytes"] == prep.lane.resident == 0


def test_with_less_memory_than_was_asked_for_fewer_are_kept(
    photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def little(nbytes: int) -> torch.Tensor:
        return no_memory(nbytes) if nbytes > ROOM // 2 else torch.empty(nbytes, dtype=torch.uint8)

    dataset = on_device(photos)
    with caplog.at_level(logging.WARNING, "penstock"):
        prepared(dataset, allocate=little)
    assert "samples that find no place" in caplog.text
    assert dataset.store.stats()["held_bytes"] == ROOM // 2


@pytest.mark.parametrize("what", ["rows", "generations", "all"])
def test_a_store_that_is_destroyed_costs_time_only(what: str, photos: Path) -> None:
    dataset = on_device(photos)
    store = dataset.store
    prep = prepared(dataset)
    for epoch in range(4):
        iterator, found = iterator_of(prep, 2, epoch), []
        try:
            for number, batch in enumerate(iterator):
                found.append(batch)
                if epoch >= 1 and number == 0:
                    if what == "rows":
                        store.rows[:] = torch.randint(-(2**62), 2**62, store.rows.shape).numpy()
                    elif what == "generations":
                        store.chunks[:, 0] += 1
                    else:
                        store.close()
        finally:
            iterator.close()
        assert same(found, expected(photos, dataset, epoch)), epoch


# ---- the kernels


@pytest.mark.parametrize("kind", [Interpreted, Broken])
@pytest.mark.interpreted
def test_the_kernels_read_samples_where_they_lie(kind: Any, photos: Path) -> None:
    chain = T.Compose([T.RandomResizedCrop(20), T.RandomHorizontalFlip(), *CHAIN.transforms[3:]])
    renewal = Renewal(SAMPLES, SAMPLES, 3, seed=5)
    dataset = ReusedOnDevice(
        ImageFolder(photos, T.Compose([T.Resize((30, 24)), *chain.transforms])), 1, renewal, DeviceStore(renewal, ROOM)
    )  # fmt: skip

    class Refuses(Interpreted):
        """Kernels that take nothing."""

        def _images_of(self, task: Any) -> Any:
            raise RuntimeError("not these")

    prep = prepared(dataset, stations=stations_of(Refuses if kind is Broken else Interpreted))
    forms = set()
    for epoch in (2, 3):
        offered(dataset).begin(epoch, range(SAMPLES))
        samples, wanted = [], []
        for at in range(3):
            seed_all(at)
            samples.append(prep.dataset[at])
            seed_all(at)
            wanted.append(dataset[at][0])
        begun = prep.lane.begin(default_collate(samples), spare_known=True)
        forms |= set(begun.contents.forms.tolist())
        prep.lane.make(begun, None).order(None)
        assert all(torch.equal(image, theirs) for image, theirs in zip(begun.images, wanted, strict=True))
    assert forms >= {KEPT, RESIDENT}
    assert prep.lane.stats()["by_cpu"] == (6 if kind is Broken else 0)


def test_without_requests_what_lies_there_is_prepared_anew(photos: Path) -> None:
    dataset = on_device(photos)
    prep = prepared(dataset)
    batches_of(prep, 1, 0)
    prep.dataset.requests.say(share=0.0, limit=0.0, finishes=False, samples=4)
    offered(dataset).begin(1, range(SAMPLES))
    assert {int(prep.dataset[at][0][:4].view(torch.int32)) for at in range(SAMPLES)} == {FINISHED}


# ---- loaders


def test_one_store_has_one_memory_whoever_uses_it(photos: Path) -> None:
    """Two iterators of one loader at once have two lanes."""
    dataset, taken = on_device(photos), []

    def allocate(nbytes: int) -> torch.Tensor:
        taken.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)

    prep = prepared(dataset, allocate=allocate)
    first = iterator_of(prep, 1, 0)
    other = prepared(dataset, allocate=allocate, kept=prep)
    assert other.lane is not prep.lane
    second = iterator_of(other, 1, 0)
    pairs = list(zip(first, second, strict=True))
    first.close()
    second.close()
    assert same([one for one, _ in pairs], expected(photos, dataset, 0))
    assert same([one for _, one in pairs], expected(photos, dataset, 0))
    assert len(taken) == 1
    assert prepared(dataset, allocate=allocate, kept=other).lane is other.lane
    again = on_device(photos)
    assert prepared(again, allocate=allocate, kept=other).lane is not other.lane, "another store"
    assert len(taken) == 2


def test_the_memory_goes_with_the_store(photos: Path) -> None:
    dataset = on_device(photos)
    prep = prepared(dataset)
    batches_of(prep, 1, 0)
    held = weakref.ref(dataset.store.arena)
    del dataset, prep
    gc.collect()
    until = time.monotonic() + 10.0
    while held() is not None and time.monotonic() < until:  # stations end by themselves
        time.sleep(0.01)
    assert held() is None


class Blind(StagedDataset):
    def __init__(self) -> None:
        super().__init__(lambda _: (b"", 0), CHAIN, 3)


def loader_of(dataset: Any, **options: Any) -> DataLoader[Any]:
    keywords: dict[str, Any] = {
        "device": "cuda", "gpu_prep": "concurrent", "num_workers": 1, "reuse": Reuse(store="device", split=1), **options,
    }  # fmt: skip
    return DataLoader(dataset, 4, **{"shuffle": True, "seed": 5, **keywords})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": None}, "give device='cuda' and gpu_prep"),
        ({"device": "cpu"}, "give device='cuda' and gpu_prep"),
        ({"gpu_prep": "off"}, "give device='cuda' and gpu_prep"),
        ({"gpu_prep": GpuPrep(mode="auto", finish=False)}, "leave finish=False out"),
    ],
)
def test_what_the_device_must_finish_it_must_be_there_for(options: Any, says: str, photos: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        loader_of(ImageFolder(photos, CHAIN), **options)


def test_targets_must_be_known_without_the_sample() -> None:
    with pytest.raises(ConfigError, match="Blind gives targets together with samples only"):
        loader_of(Blind())


def test_it_needs_workers(photos: Path) -> None:
    loader = loader_of(ImageFolder(photos, CHAIN), gpu_prep="auto", num_workers=0)
    with pytest.raises(ConfigError, match="needs workers"):
        iter(loader)


def test_a_loader_says_where_it_keeps_them(photos: Path) -> None:
    loader = loader_of(ImageFolder(photos, CHAIN))
    assert "kept of 12 samples on the device" in loader.explain()
    stats = loader.stats()["reuse"]
    assert (stats["kept"], stats["split"]) == (12, 1)


def test_what_the_lane_is_asked_for_is_not_turned_off(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a shuffle, or where errors are forgiven, "auto" is otherwise no lane at all."""
    seen: list[Any] = []

    def planned(*_: Any, **options: Any) -> str:
        seen.append(options["wanted"])
        return "its samples become images of several sizes"

    monkeypatch.setattr("penstock.gpu.cuda.prep_for", planned)
    for options in ({"on_error": "skip"}, {"shuffle": False}):
        loader = loader_of(ImageFolder(photos, CHAIN), gpu_prep="auto", **options)
        with pytest.raises(ConfigError, match="several sizes"):
            iter(loader)
    assert [(wanted.mode, wanted.share) for wanted in seen] == [("auto", 0.0), ("auto", None)]


def test_epochs_that_overlap_and_workers_that_come_and_go(photos: Path) -> None:
    """The next epoch is asked for before the last one has ended, and claims chunks whose samples are still on their way."""
    many = folder_of(photos, copies=8)
    renewal = Renewal(len(many), len(many), 3, seed=5)
    dataset = ReusedOnDevice(many, 1, renewal, DeviceStore(renewal, int(1.3 * 96 * 48 * 48 * 3)))
    prep = prepared(dataset)
    loader = DataLoader(
        prep.dataset, batch_size=4, shuffle=True, seed=5, num_workers=2, persistent_workers=True
    )
    iterator = DeviceIterator(loader._new_engine(), Mover(CPU, None, None, False, prep.lane))
    try:
        for epoch in range(6):
            loader._iterate_workers(iterator, fresh=epoch == 0)
            found = []
            for number, batch in enumerate(iterator):
                found.append(batch)
                if number == 5:
                    iterator.set_workers(1 + epoch % 3, follows=False)
            assert same(found, expected(photos, dataset, epoch, copies=8)), epoch
    finally:
        iterator.close()
    assert prep.lane.resident > 3 * 96 // 2
