"""The store in memory: what is made where it will lie, and what becomes of that where its making fails, or ends with its process."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")

from penstock import accel
from penstock import transforms as T
from penstock.dataset.offers import offered
from penstock.dataset.seeding import seed_sample
from penstock.pipeline.chain import Chain, executed
from penstock.pipeline.decode import Encoded
from penstock.pipeline.staged import StagedDataset
from penstock.plan.renewal import Renewal
from penstock.reuse.images import Reused
from penstock.reuse.stores.chunks import PUT
from penstock.reuse.stores.contract import Wanted
from penstock.reuse.stores.memory import MemoryStore, entry_at, entry_size
from penstock.transforms.cpu import execute
from penstock.transforms.policies import RANDAUGMENT
from penstock.transforms.steps import Code, Step
from tests.unit.test_jpeg_parts import jpeg_of, photo
from tests.unit.test_kept_memory import FORK, store_of, used_before
from tests.unit.test_kept_memory_pages import gives_pages
from tests.unit.test_reuse_loans import taken_away

needs_pages = pytest.mark.skipif(not gives_pages(), reason="Linux before 5.14, or no compiled loops")
needs_loops = pytest.mark.skipif(
    accel.compiled() is None, reason="there was no compiler when penstock was installed"
)
SHAPE = (40, 50, 3)
WANTED = Wanted(3, 0)


def pixels(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Any:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def used_store() -> MemoryStore:
    store = store_of()
    used_before(store)
    return store


def taken(store: MemoryStore) -> int:
    return sum(used for _, used in store._filling.values())


def is_kept_in(store: MemoryStore, values: Any) -> bool:
    return bool(np.may_share_memory(values, store._bytes))


def found(store: MemoryStore, wanted: Wanted = WANTED) -> Any:
    entry = store.get(wanted)
    return None if entry is None else (entry.values, entry.extra)


@pytest.mark.parametrize("used", [False, True], ids=["new chunk", "used before"])
@pytest.mark.parametrize("told", [False, True], ids=["made elsewhere", "made there"])
@pytest.mark.parametrize("extra", [b"", b"cat"])
def test_what_is_made_is_kept(used: bool, told: bool, extra: bytes) -> None:
    store = used_store() if used else store_of()

    def make(out: Any) -> Any:
        if out is None or not told:
            return pixels()
        out[:] = pixels()
        return out

    values, lent = store.make(WANTED, SHAPE, extra, make)
    assert np.array_equal(values, pixels())
    kept, target = found(store)
    assert np.array_equal(kept, pixels())
    assert target == extra
    assert store.stats()["entries"] == store._counts[:, PUT].sum() == 1
    assert taken(store) == entry_size(pixels().nbytes, extra)
    assert (lent is not None) == is_kept_in(store, values) == (used and gives_pages())
    if lent is not None:
        assert lent.holds()
        assert not values.flags.writeable
        store.chunks[:, 0] += 1
        assert not lent.holds()


@pytest.mark.parametrize("used", [False, True], ids=["new chunk", "used before"])
def test_pixels_that_lie_backwards_or_apart_are_kept_as_they_are(used: bool) -> None:
    for turned in (pixels()[:, ::-1], pixels(shape=(80, 50, 3))[::2]):
        store = used_store() if used else store_of()
        values, _ = store.make(WANTED, SHAPE, b"", lambda _: turned)  # noqa: B023
        assert np.array_equal(values, turned)
        assert np.array_equal(found(store)[0], turned)


@needs_pages
@pytest.mark.parametrize("fault", ["error", "interrupt", "other shape", "other type"])
def test_room_for_what_does_not_come_is_given_back(fault: str) -> None:
    store, errors = used_store(), {"error": ValueError, "interrupt": KeyboardInterrupt}

    def make(out: Any) -> Any:
        if out is not None:
            out[:] = 9
        if fault in errors:
            raise errors[fault]
        return pixels(shape=(7, 9, 3)) if fault == "other shape" else pixels().astype(np.int16)

    if fault in errors:
        with pytest.raises(errors[fault]):
            store.make(WANTED, SHAPE, b"", make)
        assert found(store) is None
        assert (taken(store), store.stats()["entries"]) == (0, 0)
        return
    values, lent = store.make(WANTED, SHAPE, b"", make)
    assert lent is None
    assert np.array_equal(values, make(None))
    assert np.array_equal(found(store)[0], values)
    size = taken(store)
    store.put(Wanted(3, 0), store.get(WANTED))  # type: ignore[arg-type]
    assert taken(store) == 2 * size


@pytest.mark.parametrize("sample", [-1, 20])
def test_what_the_store_does_not_have_is_made_all_the_same(sample: int) -> None:
    store = used_store()
    values, lent = store.make(Wanted(sample, 0), SHAPE, b"", lambda _: pixels())
    assert (lent, store.stats()["entries"]) == (None, 0)
    assert np.array_equal(values, pixels())


def test_what_is_too_large_is_made_and_refused() -> None:
    store = used_store()
    shape = (2000, 2000, 3)
    values, lent = store.make(WANTED, shape, b"", lambda _: pixels(shape=shape))
    assert (lent, store.stats()["refused"]) == (None, 1)
    assert values.shape == shape


@needs_pages
def test_who_is_killed_while_it_makes_an_entry_leaves_nothing_to_be_found_and_its_room_to_others() -> None:
    store = used_store()
    store.make(Wanted(4, 0), SHAPE, b"", lambda _: pixels(4))
    before = store.stats()

    def killed(out: Any) -> Any:
        out[: SHAPE[0] // 2] = 123
        os.kill(os.getpid(), signal.SIGKILL)

    def half_done() -> None:
        store.make(WANTED, SHAPE, b"", killed)

    for _ in range(6):  # each has a chunk that is nobody else's until its time has come
        child = FORK.Process(target=half_done)
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        assert found(store) is None
    assert store.stats()["entries"] == before["entries"]
    assert np.array_equal(found(store, Wanted(4, 0))[0], pixels(4))
    large = (400, 800, 3)  # almost a chunk: all of them are needed
    store.now = 3
    for sample in range(8):
        assert store.make(Wanted(sample, 3), large, b"", lambda _: pixels(shape=large))[1] is not None


@needs_pages
def test_all_of_an_entry_is_there_before_it_can_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    store, noted = used_store(), list[Any]()

    def note(wanted: Wanted, offset: int, size: int, generation: int) -> None:
        noted.append((wanted, entry_at(store._bytes, offset, size), generation))

    monkeypatch.setattr(store, "note", note)
    store.make(WANTED, SHAPE, b"cat", lambda _: pixels())
    ((wanted, entry, _),) = noted
    assert (wanted, entry.extra) == (WANTED, b"cat")
    assert np.array_equal(entry.values, pixels())


@needs_pages
@pytest.mark.parametrize("fails", [False, True])
def test_a_store_that_is_closed_meanwhile_keeps_nothing_and_nothing_else_is_wrong(fails: bool) -> None:
    store = used_store()

    def make(out: Any) -> Any:
        store.close()
        if fails:
            raise ValueError("bad image")
        if out is None:
            return pixels()
        out[:] = pixels()
        return out

    if fails:
        with pytest.raises(ValueError, match="bad image"):
            store.make(WANTED, SHAPE, b"", make)
        return
    values, lent = store.make(WANTED, SHAPE, b"", make)
    assert lent is None
    assert np.array_equal(values, pixels())
    assert not is_kept_in(store, values)
    assert values.flags.writeable


@needs_pages
def test_room_that_is_not_the_last_any_more_is_not_given_back() -> None:
    store = used_store()
    ends = [store.renewal.ends(sample, 0) for sample in range(20)]
    one, two, three = [Wanted(sample, 0) for sample in range(20) if ends[sample] == ends[0]][:3]

    def make(_: Any) -> Any:
        store.make(two, SHAPE, b"", lambda _: pixels(2))
        raise ValueError("bad image")

    with pytest.raises(ValueError, match="bad image"):
        store.make(one, SHAPE, b"", make)
    store.make(three, SHAPE, b"", lambda _: pixels(3))
    assert np.array_equal(found(store, two)[0], pixels(2))
    assert np.array_equal(found(store, three)[0], pixels(3))


@needs_pages
def test_functions_that_change_what_they_are_given_change_nothing_that_is_kept() -> None:
    def darker(image: Any) -> Any:
        image[::2] //= 2
        return image

    chain = Chain.of([T.RandAugment(2, 9), T.RandomCrop(24), T.Lambda(darker)])
    files = [jpeg_of(photo(60 + i, 80, seed=i)) for i in range(20)]
    source = StagedDataset(lambda at: (files[at], at), chain, len(files))
    renewal = Renewal(20, 20, 3, seed=5)
    ours, plain = (Reused(source, 2, renewal, MemoryStore(renewal, room)) for room in (8 << 20, 0))
    used_before(ours.store)  # type: ignore[arg-type]
    for epoch in range(5):
        for sample in range(20):
            for dataset in (ours, plain):
                offered(dataset).begin(epoch, [sample])
            seed_sample(100 * epoch + sample)
            tensor = ours[sample][0]
            seed_sample(100 * epoch + sample)
            assert np.array_equal(tensor, plain[sample][0]), (epoch, sample)


@needs_loops
@pytest.mark.parametrize("name", RANDAUGMENT)
def test_ops_write_where_they_are_told(name: str) -> None:
    """The last of a program; without any, the photo is decoded there."""
    data = jpeg_of(photo(90, 120))
    space = RANDAUGMENT[name]
    level = 0.0 if space is None else space.magnitude(9, 31, (90, 120))
    last = T.augment.steps_of(name, level, (90, 120), 0, None)
    for program in (last, [Step(Code.INVERT, ()), *last], [*last, *last]):
        out = np.empty((90, 120, 3), np.uint8)
        expected = executed(program, Encoded(data))
        written = executed(program, Encoded(data), out)
        assert written is out
        assert np.array_equal(written, expected)


@needs_loops
@pytest.mark.parametrize("flips", [False, True])
def test_a_part_that_is_made_another_size_is_written_where_it_belongs(flips: bool) -> None:
    image, out = pixels(), np.empty((30, 20, 3), np.uint8)
    program = [Step(Code.CROP, (3, 4, 20, 30)), Step(Code.RESIZE, (30, 20, 2, True))]
    program += [Step(Code.FLIP_H, ())] if flips else []
    assert execute(program, image, out=out) is out
    assert np.array_equal(out, execute(program, image))
    other = execute(program, image, out=np.empty((30, 21, 3), np.uint8))
    assert np.array_equal(other, out)


@needs_pages
@pytest.mark.parametrize("split", [0, 1, 2])
@pytest.mark.parametrize("gone", [False, True])
def test_a_sample_is_made_where_it_is_kept_and_its_first_use_read_from_there(
    split: int, gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or made again, if it is gone from there before it was read."""
    chain = Chain.of([T.RandAugment(2, 9), T.RandomResizedCrop(24), T.RandomHorizontalFlip()])
    files = [jpeg_of(photo(60 + i, 80, seed=i)) for i in range(20)]
    source = StagedDataset(lambda at: (files[at], at), chain, len(files))
    renewal = Renewal(20, 20, 3, seed=5)
    ours = Reused(source, split, renewal, MemoryStore(renewal, 8 << 20))
    plain = Reused(source, split, renewal, MemoryStore(renewal, 0))
    used_before(ours.store)  # type: ignore[arg-type]
    made = []
    partly = Reused.partly

    def noted(self: Reused, begun: Any, **more: Any) -> Any:
        found = partly(self, begun, **more)
        if self is ours:
            made.append(is_kept_in(self.store, found.image))  # type: ignore[arg-type]
            if gone:
                taken_away(self.store)  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(Reused, "partly", noted)
    for epoch in range(7):
        for sample in range(20):
            for dataset in (ours, plain):
                offered(dataset).begin(epoch, [sample])
            seed_sample(100 * epoch + sample)
            tensor, target = ours[sample]
            seed_sample(100 * epoch + sample)
            assert np.array_equal(tensor, plain[sample][0]), (epoch, sample)
            assert target == sample
    assert len(made) > 20
    assert all(made)
