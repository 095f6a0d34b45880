"""What a worker leaves to the GPU of a sample that is kept in memory is read where it lies: right, also where that is taken away meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")
pytest.importorskip("triton")

from penstock.dataset.offers import offered
from penstock.dataset.seeding import generators_kept, seed_sample
from penstock.gpu.dataset import features
from penstock.gpu.prep import looked
from penstock.gpu.requests import AS_THERE_IS_ROOM
from penstock.gpu.slots import BESIDE, DECODED, ENCODED, FINISHED, HEAD_ROOM, Contents, left
from penstock.pipeline.decode import decode
from penstock.plan.renewal import Renewal
from penstock.reuse.images import Reused
from penstock.reuse.stores.contract import Wanted
from penstock.reuse.stores.memory import MemoryStore
from penstock.transforms.cpu import execute
from tests.lanes_on_cpu import photos, prep_of
from tests.residents_on_cpu import SAMPLES, folder_of
from tests.unit.test_jpeg_parts import jpeg_of, photo
from tests.unit.test_kept_memory import used_before
from tests.unit.test_kept_memory_pages import gives_pages

__all__ = ["photos"]
SPLIT = 0
"""What is kept is the whole photo; of it the worker reads what the final part begins with."""


def kept(root: Path, max_bytes: int = 16 << 20, split: int = SPLIT) -> Reused:
    renewal = Renewal(SAMPLES, SAMPLES, 3, seed=5)
    return Reused(folder_of(root), split, renewal, MemoryStore(renewal, max_bytes))


def begun(dataset: Any, sample: int, epoch: int) -> Any:
    offered(dataset).begin(epoch, [sample])
    seed_sample(100 * epoch + sample)
    return offered(dataset).get(sample)[0]


def pixels_of(write: Any, slot_bytes: int) -> tuple[int, np.ndarray[Any, Any]]:
    """The form of a sample, and what becomes of it."""
    slots = torch.zeros(1, slot_bytes, dtype=torch.uint8)
    write(slots[0])
    contents = Contents(slots, (48, 48))
    sample = contents.gpu_sample(0)
    if sample.form == ENCODED:
        return ENCODED, execute(sample.program, decode(sample.image.tobytes()))
    program, image = left(sample)
    return sample.form, execute(program, image)


def taken_away(store: MemoryStore) -> None:
    """All that is kept is something else now."""
    store.chunks[:, 0] += 1
    store._bytes[store._data :] = 77


@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("share", [0.0, None])
@pytest.mark.parametrize("gone", ["never", "when it is read", "when it is written"])
def test_an_image_that_is_taken_away_while_it_is_read_is_made_again(
    photos: Path, finish: bool, share: float | None, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a share of 0 a sample may be given to two workers, and nothing wrong may ever be written."""
    dataset, plain = kept(photos), kept(photos, 0)
    store: Any = dataset.store
    ours, others = prep_of(dataset, share).dataset, prep_of(plain, 0.0).dataset
    assert offered(ours).repeatable == (share is not None)
    says = AS_THERE_IS_ROOM if share is None else share
    ours.requests.say(share=says, limit=0.0, finishes=finish, samples=4)
    others.requests.say(share=0.0, limit=0.0, finishes=finish, samples=4)
    for sample in range(SAMPLES):
        begun(ours, sample, 0).tensor()
    assert store.stats()["entries"] == SAMPLES
    sample = int(np.flatnonzero(dataset.renewal.renewed(np.arange(SAMPLES), 1) == 0)[0])
    borrow = store.borrow
    if gone == "when it is read":

        def borrowed(wanted: Wanted) -> Any:
            found = borrow(wanted)
            taken_away(store)
            return found

        monkeypatch.setattr(store, "borrow", borrowed)
    unfinished = begun(ours, sample, 1)
    assert store.stats()["found"] == 1
    if gone == "when it is written":
        taken_away(store)
    form, found = pixels_of(unfinished.write, ours._slot)
    assert form == (DECODED if finish else FINISHED)
    assert np.array_equal(found, pixels_of(begun(others, sample, 1).write, others._slot)[1])


@pytest.mark.skipif(not gives_pages(), reason="Linux before 5.14, or no compiled loops")
@pytest.mark.parametrize("way", ["files", "kernels", "workers", "drawn first"])
def test_an_image_that_is_gone_right_after_it_was_made_is_made_again(
    photos: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was just made is read where it lies, too."""
    dataset, plain = kept(photos), kept(photos, 0)
    store: Any = dataset.store
    used_before(store)
    partly, made = dataset.partly, list[bool]()

    def then_gone(begun: Any, **more: Any) -> Any:
        found = partly(begun, **more)
        made.append(found.loan is not None)
        taken_away(store)
        return found

    monkeypatch.setattr(dataset, "partly", then_gone)
    share = None if way == "files" else 0.0
    preps = [prep_of(each, share) for each in (dataset, plain)]
    for prep in preps:
        prep.dataset.requests.say(share=0.0, limit=0.0, finishes=way in ("files", "kernels"), samples=4)
    for sample in range(SAMPLES):
        if way == "drawn first":
            found, expected = (drawn_first(each, sample) for each in (dataset, plain))
        else:
            found, expected = (
                pixels_of(begun(prep.dataset, sample, 0).write, prep.dataset._slot)[1] for prep in preps
            )
        assert np.array_equal(found, expected), sample
    assert made == [True] * SAMPLES


def drawn_first(dataset: Reused, sample: int) -> Any:
    offered(dataset).begin(0, [sample])
    seed_sample(sample)
    deferred = dataset.deferred()
    assert deferred is not None
    unfinished, _ = deferred.sample(sample)
    slot = torch.zeros(unfinished.shape, dtype=unfinished.dtype)
    unfinished.write(slot)
    for _, finish in deferred.rest():
        finish()
    return slot.numpy()


@pytest.mark.parametrize("finish", [True, False])
def test_where_two_workers_may_write_a_sample_nothing_is_read_from_the_store_any_more(
    photos: Path, finish: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither wrong bytes for a moment, nor a file that is gone by then."""
    dataset, plain = kept(photos), kept(photos, 0)
    ours, others = prep_of(dataset, 0.0).dataset, prep_of(plain, 0.0).dataset
    for slots in (ours, others):
        slots.requests.say(share=0.0, limit=0.0, finishes=finish, samples=4)
    for sample in range(SAMPLES):
        begun(ours, sample, 0).tensor()
    sample = int(np.flatnonzero(dataset.renewal.renewed(np.arange(SAMPLES), 1) == 0)[0])
    unfinished, store = begun(ours, sample, 1), dataset.store
    assert isinstance(store, MemoryStore)
    taken_away(store)
    monkeypatch.setattr(dataset, "again", None)
    _, found = pixels_of(unfinished.write, ours._slot)
    assert np.array_equal(found, pixels_of(begun(others, sample, 1).write, others._slot)[1])


@pytest.mark.parametrize("files", [True, False])
def test_places_in_a_batch_are_as_large_whatever_is_kept(photos: Path, files: bool) -> None:
    """Else what is made of a sample, and by whom, would depend on it."""
    for number, path in enumerate(photos.rglob("*.jpg")):
        path.write_bytes(jpeg_of(photo(400, 300, number), quality=98))
    dataset, looks = kept(photos, split=1), list[Any]()
    for _ in range(2):
        with generators_kept():
            torch.manual_seed(1)
            looks.append(looked(dataset, kept_as_files=files))
        for sample in range(SAMPLES):
            offered(dataset).begin(0, [sample])
            dataset[sample]
        assert dataset.store.stats()["entries"] == SAMPLES
    assert looks[0] == looks[1]
    assert (looks[0].room == HEAD_ROOM + 3 * 48 * 48 + BESIDE) != files, (
        "a file is larger than what is kept of it"
    )


@pytest.mark.parametrize("drawn", [False, True])
def test_a_sample_that_is_not_there_may_leave_as_the_file_it_is_and_is_then_not_kept(
    photos: Path, drawn: bool
) -> None:
    """Unless who prepares it must not depend on what was there."""
    dataset, plain = kept(photos), kept(photos, 0)
    ours = prep_of(dataset, None, deterministic=drawn).dataset
    others = prep_of(plain, 0.0).dataset
    store: Any = dataset.store
    ours.requests.say(share=0.5 if drawn else AS_THERE_IS_ROOM, limit=100.0, finishes=True, samples=4)
    others.requests.say(share=0.0, limit=0.0, finishes=True, samples=4)
    files = 0
    for sample in range(SAMPLES):
        before = store.stats()["entries"]
        form, found = pixels_of(begun(ours, sample, 0).write, ours._slot)
        files += form == ENCODED
        assert store.stats()["entries"] == before + (form != ENCODED)
        assert np.array_equal(found, pixels_of(begun(others, sample, 0).write, others._slot)[1])
    assert files == 0 if drawn else 0 < files < SAMPLES


def test_a_sample_that_is_to_be_kept_costs_the_same_in_all_its_uses(photos: Path) -> None:
    """Otherwise it would leave as a file in one epoch, be kept in the next, and serve once."""
    dataset, whole = kept(photos), folder_of(photos)
    seen: dict[str, set[tuple[float, ...]]] = {"kept": set(), "not kept": set()}
    for epoch in range(8):
        offered(dataset).begin(epoch, [3])
        seed_sample(epoch)
        seen["kept"].add(features(dataset.begun(3)))
        seed_sample(epoch)
        seen["not kept"].add(features(whole.begun(3)))
    assert len(seen["kept"]) == 1
    assert len(seen["not kept"]) > 1, "each crop is another"
