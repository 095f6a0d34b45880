"""Places on the device that are given away while samples are on their way to them, or from them: no batch has other bytes for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")
pytest.importorskip("triton")

from penstock.dataset.offers import offered
from penstock.dataset.seeding import seed_all
from penstock.gpu.prep import Prep
from penstock.gpu.slots import KEPT, PLACE, RESIDENT
from penstock.reuse.stores.device import DevicePlace, DeviceStore
from tests.lanes_on_cpu import batches_of, photos
from tests.residents_on_cpu import SAMPLES, on_device, prepared
from tests.unit.test_gpu_stations import Interpreted, stations_of

__all__ = ["photos"]


def batch_in_flight(prep: Prep, epoch: int) -> tuple[Any, list[torch.Tensor]]:
    """A batch as workers leave it, all of its samples on the device; and what is to become of them."""
    dataset: Any = prep.dataset._source
    offered(dataset).begin(epoch, range(SAMPLES))
    there = [at for at in range(SAMPLES) if dataset.schedule.of(at).renewed < epoch][:4]
    samples, wanted = [], []
    for at in there:
        seed_all(at)
        samples.append(prep.dataset[at])
        seed_all(at)
        wanted.append(dataset[at][0])
    begun = prep.lane.begin(default_collate(samples), spare_known=True)
    assert set(begun.contents.forms.tolist()) == {RESIDENT}
    return begun, wanted


def renewed_now(dataset: Any) -> list[int]:
    """Samples that the epoch which has begun prepares anew: they are kept."""
    return [at for at in range(SAMPLES) if dataset.schedule.of(at).renewed == dataset.schedule.epoch]


def claimed_again(store: DeviceStore) -> None:
    """Other samples are written to all chunks."""
    store.chunks[:, 0] += 1
    for chunk in range(len(store.chunks)):
        place = DevicePlace(0, 9, chunk * store.chunk_bytes, int(store.chunks[chunk, 0]))
        assert store.begin([place]) == [True]
        store.end([place], [(1, 1)])
    store.arena.fill_(7)


def test_a_sample_whose_place_was_given_away_is_made_again(photos: Path) -> None:
    dataset = on_device(photos)
    prep = prepared(dataset)
    batches_of(prep, 1, 0)
    begun, wanted = batch_in_flight(prep, 1)
    claimed_again(dataset.store)
    prep.lane.make(begun, None).order(None)
    assert all(torch.equal(image, theirs) for image, theirs in zip(begun.images, wanted, strict=True))
    assert prep.lane.stats()["by_cpu"] == len(wanted)


@pytest.mark.parametrize("offset", [-64, 1 << 40])
def test_a_place_that_is_nowhere_is_not_read(offset: int, photos: Path) -> None:
    dataset = on_device(photos)
    prep = prepared(dataset)
    batches_of(prep, 1, 0)
    begun, wanted = batch_in_flight(prep, 1)
    contents, place = begun.contents, begun.contents.gpu_sample(0).place
    at = int(contents.offsets[0])
    contents.slots[0, at - PLACE.size : at] = torch.frombuffer(
        bytearray(PLACE.pack(*place._replace(offset=offset))), dtype=torch.uint8
    )
    assert contents.gpu_sample(0).place.offset == offset
    prep.lane.make(begun, None).order(None)
    assert all(torch.equal(image, theirs) for image, theirs in zip(begun.images, wanted, strict=True))
    assert prep.lane.stats()["by_cpu"] > 0


def test_a_place_that_was_claimed_but_not_written_yet_still_holds(photos: Path) -> None:
    """Workers are ahead: they claim what has come to its end while the last batches of the epoch before are on their way."""
    dataset = on_device(photos)
    prep = prepared(dataset)
    batches_of(prep, 1, 0)
    begun, wanted = batch_in_flight(prep, 1)
    dataset.store.chunks[:, 0] += 1
    prep.lane.make(begun, None).order(None)
    assert all(torch.equal(image, theirs) for image, theirs in zip(begun.images, wanted, strict=True))
    assert prep.lane.stats()["by_cpu"] == 0


def test_a_sample_that_comes_too_late_for_its_place_is_not_kept(photos: Path) -> None:
    dataset = on_device(photos, times=2)
    prep = prepared(dataset)
    offered(dataset).begin(2, range(SAMPLES))
    samples, wanted = [], []
    for at in renewed_now(dataset):
        seed_all(at)
        samples.append(prep.dataset[at])
        seed_all(at)
        wanted.append(dataset[at][0])
    begun = prep.lane.begin(default_collate(samples), spare_known=True)
    assert set(begun.contents.forms.tolist()) == {KEPT}
    dataset.store.chunks[:, 0] += 1
    dataset.store.arena.fill_(7)
    prep.lane.make(begun, None).order(None)
    assert all(torch.equal(image, theirs) for image, theirs in zip(begun.images, wanted, strict=True))
    assert (dataset.store.arena == 7).all(), "the place is somebody else's"
    assert dataset.store.stats()["entries"] == 0


def test_a_batch_that_fails_gives_its_places_up(photos: Path) -> None:
    class Failing(Interpreted):
        def _task(self, task: Any, out: torch.Tensor) -> None:
            raise MemoryError

    dataset = on_device(photos, times=2)
    prep = prepared(dataset, stations=stations_of(Failing))
    offered(dataset).begin(2, range(SAMPLES))
    begun = prep.lane.begin(
        default_collate([prep.dataset[at] for at in renewed_now(dataset)]), spare_known=True
    )
    with pytest.raises(MemoryError):
        prep.lane.make(begun, None).order(None)
    assert dataset.store.stats()["entries"] == 0
    assert not dataset.store._writing
    del prep, begun  # the error knows this frame, and would keep the lane's thread until the program ends
