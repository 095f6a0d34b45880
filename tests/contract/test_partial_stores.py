"""What every store of partly prepared samples must do, as datasets use it that reuse samples. Another store is added by one line in `STORES`.

The store on the device (`reuse/stores/device.py`) has the same interface, but takes no bytes from the host and gives none back, only places on the device: it
forgets all. Its own tests are `unit/test_kept_device.py` and `unit/test_reuse_on_device.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.plan.renewal import Renewal
from penstock.reuse.stores.contract import Entry, PartialStore, Wanted
from penstock.reuse.stores.device import DeviceStore
from penstock.reuse.stores.disk import DiskStore
from penstock.reuse.stores.disk_ahead import DiskAhead
from penstock.reuse.stores.memory import MemoryStore

NAMESPACE = "0123456789abcdef"
SAMPLES = 64
Make = Callable[[Path, int], PartialStore]


def on_disk(path: Path, max_bytes: int) -> PartialStore:
    return DiskAhead(DiskStore(path, NAMESPACE, SAMPLES, max_bytes, small_bytes=2048, upkeep_s=0))


def on_disk_tended(path: Path, max_bytes: int) -> PartialStore:
    return DiskAhead(DiskStore(path, NAMESPACE, SAMPLES, max_bytes, small_bytes=2048, upkeep_s=0.01))


def in_memory(path: Path, max_bytes: int) -> PartialStore:
    return MemoryStore(Renewal(SAMPLES, SAMPLES, times=3, seed=1), max_bytes)


def on_device(_: Path, max_bytes: int) -> PartialStore:
    return DeviceStore(Renewal(SAMPLES, SAMPLES, times=3, seed=1), max_bytes)


STORES: dict[str, Make] = {"disk": on_disk, "disk_tended": on_disk_tended, "memory": in_memory}
STAYS: dict[str, Make] = {"disk": on_disk}
"""Those whose entries are there again when they are opened again."""


@pytest.fixture(params=STORES)
def make(request: pytest.FixtureRequest) -> Make:
    return STORES[request.param]


@pytest.fixture
def store(make: Make, tmp_path: Path) -> Iterator[PartialStore]:
    made = make(tmp_path, 1 << 22)
    yield made
    made.close()


def entry(seed: int, nbytes: int = 300) -> Entry:
    values = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    return Entry(values, b"target of %d" % seed)


def same(got: Entry | None, put: Entry) -> bool:
    return (
        got is not None
        and got.values.dtype == put.values.dtype
        and got.values.shape == put.values.shape
        and got.values.tobytes() == put.values.tobytes()
        and got.extra == put.extra
    )


def test_what_was_put_is_there_and_nothing_else(store: PartialStore) -> None:
    assert store.put(Wanted(3, 7), entry(1))
    assert same(store.get(Wanted(3, 7)), entry(1))
    assert store.get(Wanted(3, 6)) is None
    assert store.get(Wanted(4, 7)) is None


@pytest.mark.parametrize("nbytes", [300, 5000])
def test_a_later_entry_takes_the_place_of_the_one_before(store: PartialStore, nbytes: int) -> None:
    assert store.put(Wanted(3, 7), entry(1, nbytes))
    assert store.put(Wanted(3, 9), entry(2, nbytes))
    assert store.get(Wanted(3, 7)) is None
    assert same(store.get(Wanted(3, 9)), entry(2, nbytes))
    assert store.stats()["entries"] == 1


@pytest.mark.parametrize("sizes", [(300, 5000), (5000, 300), (0, 3000)])
def test_small_and_large_entries_replace_each_other(store: PartialStore, sizes: tuple[int, int]) -> None:
    for epoch, nbytes in enumerate([*sizes, *sizes]):
        assert store.put(Wanted(0, epoch), entry(epoch, nbytes))
        assert same(store.get(Wanted(0, epoch)), entry(epoch, nbytes))
    assert store.stats()["entries"] == 1


@pytest.mark.parametrize("nbytes", [300, 5000])
def test_what_was_removed_is_gone(store: PartialStore, nbytes: int) -> None:
    store.remove(5)
    assert store.put(Wanted(5, 1), entry(1, nbytes))
    store.remove(5)
    assert store.get(Wanted(5, 1)) is None
    assert store.stats()["entries"] == 0
    assert store.stats()["bytes"] == 0


def test_many_are_given_in_the_order_asked_for(store: PartialStore) -> None:
    for sample in range(40):
        assert store.put(Wanted(sample, 1), entry(sample, 100 + 120 * sample))
    order = [int(sample) for sample in np.random.default_rng(0).integers(0, SAMPLES, 200)]
    got = store.get_many([Wanted(sample, 1) for sample in order])
    assert len(got) == 200
    for sample, found in zip(order, got, strict=True):
        assert same(found, entry(sample, 100 + 120 * sample)) if sample < 40 else found is None
    assert store.get_many([]) == []


def test_values_may_be_changed_afterwards_and_those_given_may_not(store: PartialStore) -> None:
    mine = entry(1)
    assert store.put(Wanted(1, 1), mine)
    before = mine.values.copy()
    mine.values[:] = 0
    got = store.get(Wanted(1, 1))
    assert got is not None
    assert np.array_equal(got.values, before)
    with pytest.raises(ValueError, match="read-only"):
        got.values[0] = 1


def test_what_is_borrowed_is_what_was_put_as_long_as_it_holds(store: PartialStore) -> None:
    for sample in range(10):
        assert store.put(Wanted(sample, 0), entry(sample))
    store.expect([Wanted(sample, 0) for sample in range(12)])
    for sample in range(12):
        lent = store.borrow(Wanted(sample, 0))
        assert (lent is None) == (sample >= 10)
        if lent is not None:
            assert same(lent.entry, entry(sample))
            assert lent.holds()
            assert all(lent.mark) or lent.mark == (0, 0)
    assert store.borrow(Wanted(3, 1)) is None
    assert same(store.get(Wanted(3, 0)), entry(3)), "also what nobody expected any more"


def test_stores_that_lend_many_lend_all_of_a_task_at_once(store: PartialStore) -> None:
    for sample in range(10):
        assert store.put(Wanted(sample, 0), entry(sample))
    if not store.lends_many:
        return
    store.expect([Wanted(sample, 0) for sample in range(10)])
    lent = [store.borrow(Wanted(sample, 0)) for sample in range(10)]
    assert all(
        each is not None and same(each.entry, entry(at)) and each.holds() for at, each in enumerate(lent)
    )


@pytest.mark.parametrize("made", [*STORES, "device"])
def test_what_is_made_is_given_and_kept_if_there_is_room(made: str, tmp_path: Path) -> None:
    store = (STORES | {"device": on_device})[made](tmp_path, 1 << 22)
    pixels = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)

    def make(place: Any) -> Any:
        if place is None:
            return pixels.copy()
        np.copyto(place, pixels)
        return place

    for sample, (shape, wanted) in enumerate([((5, 7, 3), Wanted(0, 0)), ((5, 7, 1), Wanted(1, 0))]):
        values, lent = (
            store.make(wanted, shape, b"extra", make)
            if sample == 0
            else store.make(wanted, shape, b"extra", lambda _: pixels)
        )
        assert np.array_equal(values, pixels)
        assert lent is None or same(lent.entry, Entry(pixels, b"extra"))
        got = store.get(wanted)
        assert same(got, Entry(pixels, b"extra")) or (got is None and made == "device")
    values, lent = store.make(Wanted(SAMPLES, 0), (5, 7, 3), b"", make)
    assert np.array_equal(values, pixels)
    assert lent is None
    with pytest.raises(ValueError, match="bad image"):
        store.make(Wanted(2, 0), (5, 7, 3), b"", failing)
    assert store.get(Wanted(2, 0)) is None
    store.close()


def failing(_: Any) -> Any:
    raise ValueError("bad image")


COMMON = ["?", "i1", "u1", "<i2", "<i4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"]
RARE = [">i4", ">f4", "<M8[ns]", "<m8[s]", "S5", "<U3"]
SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 0, 2), (1,), (5, 7), (2, 3, 1, 2)]
DEEP = (2, 1, 2, 1, 2, 1, 2, 1)


def of_type(dtype: str, shape: tuple[int, ...]) -> Entry:
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (int(np.prod(shape)) or 1) * np.dtype(dtype).itemsize, np.uint8)
    values: Any = np.zeros(shape, dtype)
    if np.dtype(dtype).kind in "iufcmM" and values.size:
        values = raw.view(dtype)[: values.size].reshape(shape)
    return Entry(values, b"\0\xff" * 3)


@pytest.mark.parametrize("dtype", COMMON)
@pytest.mark.parametrize("shape", SHAPES)
def test_any_common_type_and_shape_comes_back(
    store: PartialStore, dtype: str, shape: tuple[int, ...]
) -> None:
    put = of_type(dtype, shape)
    assert store.put(Wanted(0, 0), put)
    assert same(store.get(Wanted(0, 0)), put)


@pytest.mark.parametrize(
    ("dtype", "shape"), [*((dtype, shape) for dtype in RARE for shape in SHAPES), ("u1", DEEP), ("<f4", DEEP)]
)
def test_any_other_comes_back_or_is_refused(store: PartialStore, dtype: str, shape: tuple[int, ...]) -> None:
    put = of_type(dtype, shape)
    got = store.get(Wanted(0, 0)) if store.put(Wanted(0, 0), put) else None
    assert got is None or same(got, put)
    assert got is not None or not store.lasts


def test_values_that_are_not_in_c_order_come_back_in_it(store: PartialStore) -> None:
    whole = np.arange(4096, dtype=np.int32).reshape(64, 64)
    for at, part in enumerate([whole.T, whole[::2, ::-3], whole[:, 5], np.asfortranarray(whole)]):
        assert store.put(Wanted(at, 0), Entry(part))
        got = store.get(Wanted(at, 0))
        assert got is not None
        assert np.array_equal(got.values, part)
        assert got.values.flags.c_contiguous


@pytest.mark.parametrize(
    "values",
    [np.array([object()]), np.zeros(2, [("a", "i4")]), np.zeros((1,) * 9), np.zeros(2, "V8")],
    ids=["objects", "fields", "nine dimensions", "void"],
)
def test_what_cannot_be_kept_is_refused(store: PartialStore, values: Any) -> None:
    assert not store.put(Wanted(0, 0), Entry(values))
    assert store.get(Wanted(0, 0)) is None


def test_samples_that_there_are_not_are_refused(store: PartialStore) -> None:
    for sample in (-1, SAMPLES, 1 << 70):
        assert not store.put(Wanted(sample, 0), entry(0))
        assert store.get(Wanted(sample, 0)) is None
        store.remove(sample)


@pytest.mark.parametrize("nbytes", [900, 9000])
def test_a_full_store_refuses_and_keeps_what_it_has(make: Make, tmp_path: Path, nbytes: int) -> None:
    store = make(tmp_path, 1 << 17)
    kept = {}
    for sample in range(SAMPLES * 8):
        wanted = Wanted(sample % SAMPLES, 0 if nbytes > 5000 else sample // SAMPLES)
        if store.put(wanted, entry(sample, nbytes)):
            kept[wanted] = sample
        assert store.stats()["held_bytes"] <= store.stats()["max_bytes"] == 1 << 17
    if nbytes > 5000:
        assert 2 <= len(kept) < SAMPLES  # so few have room, and no more
    latest, now = {wanted.sample: wanted for wanted in kept}, max(wanted.renewed for wanted in kept)
    for wanted in latest.values():
        got = store.get(wanted)
        assert same(got, entry(kept[wanted], nbytes)) or (got is None and wanted.renewed < now)
    assert any(wanted.renewed == now for wanted in latest.values())
    store.close()


def test_replacing_for_ever_never_fills_a_store(make: Make, tmp_path: Path) -> None:
    store = make(tmp_path, 1 << 17)  # of which the 16 samples take 14 KB
    for epoch in range(60):
        for sample in range(16):
            assert store.put(Wanted(sample, epoch), entry(epoch, 800))
    assert same(store.get(Wanted(3, 59)), entry(59, 800))
    store.close()


def test_stats_count_what_is_kept(store: PartialStore) -> None:
    for sample in range(10):
        assert store.put(Wanted(sample, 0), entry(sample, 1000))
    stats = store.stats()
    assert stats["entries"] == 10
    assert 10_000 <= stats["bytes"] <= 10 * 1200
    assert stats["bytes"] <= stats["held_bytes"] <= stats["max_bytes"] == 1 << 22


def test_a_store_can_be_closed_twice_and_gives_nothing_afterwards(store: PartialStore) -> None:
    assert store.put(Wanted(0, 0), entry(0))
    store.close()
    store.close()
    assert store.get(Wanted(0, 0)) is None
    assert not store.put(Wanted(0, 0), entry(0))
    assert store.stats()["entries"] == 0


@pytest.mark.parametrize("name", STAYS)
def test_entries_stay_when_a_store_is_closed(name: str, tmp_path: Path) -> None:
    for run in range(3):
        store = STAYS[name](tmp_path, 1 << 22)
        for sample in range(run * 10):
            assert same(store.get(Wanted(sample, 1)), entry(sample, 50 * sample))
        for sample in range(run * 10, run * 10 + 10):
            assert store.put(Wanted(sample, 1), entry(sample, 50 * sample))
        store.close()


# ---- against a dictionary

SIZES = st.sampled_from([0, 1, 17, 700, 1800, 2048, 5000])
STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 7), st.integers(0, 5), SIZES),
    st.tuples(st.just("get"), st.integers(0, 7), st.integers(0, 5), SIZES),
    st.tuples(st.just("remove"), st.integers(0, 7), st.just(0), st.just(0)),
    st.tuples(st.sampled_from(["reopen", "flush", "compact"]), st.just(0), st.just(0), st.just(0)),
)


@pytest.mark.parametrize("name", STAYS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, max_size=60))
def test_a_store_is_a_dictionary_that_stays(
    name: str, steps: list[tuple[str, int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("store")
    store, model = STAYS[name](path, 1 << 20), dict[int, tuple[int, int, int]]()
    for number, (step, sample, epoch, nbytes) in enumerate(steps):
        if step == "put":
            assert store.put(Wanted(sample, epoch), entry(number, nbytes))
            model[sample] = (epoch, number, nbytes)
        elif step == "remove":
            store.remove(sample)
            model.pop(sample, None)
        elif step == "reopen":
            store.close()
            store = STAYS[name](path, 1 << 20)
        elif step != "get":
            getattr(cast("DiskAhead", store).store, step, lambda: None)()
        held = model.get(sample)
        got = store.get(Wanted(sample, epoch))
        assert same(got, entry(*held[1:])) if held and held[0] == epoch else got is None
    found = store.get_many([Wanted(sample, held[0]) for sample, held in model.items()])
    assert all(same(got, entry(*held[1:])) for got, held in zip(found, model.values(), strict=True))
    assert store.stats()["entries"] == len(model)
    store.close()
