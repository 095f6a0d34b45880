"""With workers that stay, the next epoch is prepared and brought to the device before it is asked for: whatever is asked for instead, batches
are those of a loader that does nothing ahead."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock import DataLoader, PenstockError
from penstock.client import device
from penstock.client.device import DeviceIterator
from penstock.client.iterator import EngineIterator
from penstock.client.mover import Mover
from penstock.gpu.gate import Gate
from tests.integration.noisy import SIZE, Noisy, epoch, frozen, order_of
from tests.integration.test_device_cpu import Fails, copying, ends_with_it, until
from tests.integration.test_scheduling import Counted

BATCHES = -(-SIZE // 4)


def staying(dataset: Any = None, **settings: Any) -> DataLoader[Any]:
    return DataLoader(
        dataset or Noisy(),
        **{"batch_size": 4, "shuffle": True, "seed": 1, "num_workers": 2, "persistent_workers": True}
        | settings,
    )


def test_the_next_epochs_first_batches_are_on_the_device_before_it_is_asked_for() -> None:
    loader = staying(device="cpu")
    batches: Any = iter(loader)
    assert len(list(batches)) == BATCHES
    assert until(lambda: len(batches._shelf.items) >= 3), "the end of this epoch, and two batches of the next"
    assert loader.stats()["batches"] == BATCHES, "what nobody has asked for is not delivered"
    assert [*batches, *batches] == []
    assert loader.state_dict()["epoch"] == 1
    assert loader.state_dict()["batches"] == 0
    plain = staying(num_workers=0, persistent_workers=False)
    iter(plain)
    assert epoch(loader) == epoch(plain)
    assert len(copying()) == 1


@pytest.mark.parametrize("device", ["cpu", None])
@pytest.mark.parametrize("ahead", [1, 4, 40])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_follows_an_epoch_it_has_its_own_batches(device: Any, ahead: int, seed: int) -> None:
    draw = random.Random(f"{device} {ahead} {seed}")
    loader = staying(device=device, prefetch_batches=ahead)
    plain = staying(num_workers=0, persistent_workers=False)
    for _ in range(8):
        action, taken = (
            draw.choice(ACTIONS),
            draw.choice([0, 1, 3, BATCHES - 1, BATCHES, BATCHES + 1, BATCHES + 1]),
        )
        number = draw.randrange(4)
        for each in (loader, plain):
            action(each, number)
        found, wanted = (some(each, taken) for each in (loader, plain))
        assert found == wanted
        assert loader.state_dict() == plain.state_dict()
        time.sleep(draw.choice([0.0, 0.0, 0.05]))  # for what is done ahead


def some(loader: DataLoader[Any], batches: int) -> list[Any]:
    """So many; the end counts as one."""
    iterator: Iterator[Any] = iter(loader)
    found = [next(iterator, "end") for _ in range(batches)]
    return [batch if batch == "end" else frozen(batch) for batch in found]


def sets_epoch(loader: DataLoader[Any], number: int) -> None:
    loader.set_epoch(number)


def starts_twice(loader: DataLoader[Any], number: int) -> None:
    iter(loader)


def resumes(loader: DataLoader[Any], number: int) -> None:
    loader.load_state_dict(loader.state_dict())


def goes_on(loader: DataLoader[Any], number: int) -> None:
    """Nothing else."""


ACTIONS: list[Callable[[DataLoader[Any], int], None]] = [
    goes_on,
    goes_on,
    goes_on,
    sets_epoch,
    starts_twice,
    resumes,
]


def test_a_samples_error_comes_in_its_epoch() -> None:
    loader = staying(Fails(), shuffle=False, device="cpu")
    for _ in range(3):
        batches = iter(loader)
        assert order_of([next(batches)]) == [0, 1, 2, 3]
        with pytest.raises(LookupError, match="no sample 5"):
            next(batches)
        assert order_of(batches) == list(range(8, SIZE))
        time.sleep(0.05)


@pytest.mark.parametrize("device", ["cpu", None])
def test_epochs_without_a_batch_end(device: Any) -> None:
    loader = staying(Noisy(3), drop_last=True, device=device)
    assert [list(loader) for _ in range(3)] == [[], [], []]


@pytest.mark.parametrize("device", ["cpu", None])
def test_epochs_shorter_than_what_is_asked_for_ahead_are_prepared_once(device: Any) -> None:
    dataset = Counted()
    loader = staying(dataset, batch_size=SIZE, prefetch_batches=4, device=device)
    for _ in range(20):
        assert sorted(order_of(loader)) == list(range(SIZE))
    assert dataset.prepared.sum() < 2 * 20 * SIZE  # a little is made ahead, or twice; not all of it


@pytest.mark.parametrize("device", ["cpu", None])
def test_who_leaves_with_the_last_batch_has_come_to_the_end(device: Any) -> None:
    dataset = Counted()
    loader = staying(dataset, prefetch_batches=BATCHES, device=device)
    for _ in range(20):
        batches = [batch for _, batch in zip(range(BATCHES), loader, strict=False)]
        assert sorted(order_of(batches)) == list(range(SIZE))
    assert dataset.prepared.sum() < 1.5 * 20 * SIZE


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("kept_there", [True, False])
def test_where_samples_are_kept_on_the_device_an_epochs_batches_are_made_before_the_next_ones(
    kept_there: bool, leaves: bool
) -> None:
    """They are written where those are read."""
    made, begun = threading.Event(), []

    class Making:
        def order(self, stream: Any) -> None:
            pass

        def is_over(self) -> bool:
            return made.is_set()

        def outlast(self, until_s: float) -> None:
            assert until(lambda: made.is_set() or lane.gate.ending, limit_s=until_s - time.monotonic())

    class Lane:
        gate, residents, takes_cores, mode = Gate(), object() if kept_there else None, False, "off"

        def rest(self) -> None:
            pass

        def begin(self, batch: Any, *, spare_known: bool) -> Any:
            begun.append(batch)
            return SimpleNamespace(images=batch, others=[])

        def make(self, begun: Any, copied: Any) -> Making:
            return Making()

        def taken(self, *seen: Any) -> None:
            pass

        def belong_to(self, owner: Any) -> None:
            pass

    loader, lane = staying(batch_size=SIZE), cast("Any", Lane())
    iterator = DeviceIterator(loader._new_engine(), Mover("cpu", None, None, pin=False, lane=lane))
    try:
        loader._iterate_workers(iterator, fresh=True)
        next(iterator)
        assert until(lambda: len(begun) > 1, limit_s=0.5 if kept_there else 10.0) is not kept_there
        if leaves:
            return
        made.set()
        assert until(lambda: len(begun) > 1)
        assert list(iterator) == []
        loader._iterate_workers(iterator, fresh=False)
        assert len(list(iterator)) == 1
    finally:
        before = time.monotonic()
        iterator.close()
    assert time.monotonic() - before < 60.0, "nobody asks for a batch any more, so that the gate is open"


@pytest.mark.parametrize("device", ["cpu", None])
def test_a_batch_size_that_changes_between_epochs_is_followed_at_once(device: Any) -> None:
    loader = staying(prefetch_batches=12, device=device)
    for batch_size in (4, 6, 6, 23, 2, 4):
        loader.batch_sampler.batch_size = batch_size
        sizes = [len(batch) for batch in loader]
        assert sizes == [min(batch_size, SIZE - at) for at in range(0, SIZE, batch_size)]


def test_the_last_batch_is_let_go_of_when_the_epoch_has_ended() -> None:
    loader = staying(device="cpu")
    for batch in loader:
        last = weakref.ref(batch)
    del batch
    assert until(lambda: last() is None)


# ---- interrupts


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """The caller's next wait for the thread to leave, which takes its time, is interrupted."""
    leave, waits = device.Shelf.leave, device.Shelf.wait_until_left
    due: list[None] = []

    def slowly(shelf: Any) -> None:
        time.sleep(0.3)
        leave(shelf)

    def wait(shelf: Any) -> None:
        if due and shelf.is_claimed and not shelf.is_left.is_set():
            due.pop()
            raise KeyboardInterrupt
        waits(shelf)

    @contextmanager
    def context() -> Iterator[None]:
        due.append(None)
        with pytest.raises(KeyboardInterrupt):
            yield
        assert not due

    monkeypatch.setattr(device.Shelf, "leave", slowly)
    monkeypatch.setattr(device.Shelf, "wait_until_left", wait)
    return context


class Slow(Noisy):
    def __getitem__(self, key: int) -> Any:
        time.sleep(0.02)
        return super().__getitem__(key)


def plainly(number: int, **settings: Any) -> list[Any]:
    loader = staying(num_workers=0, persistent_workers=False, **settings)
    loader.set_epoch(number)
    return epoch(loader)


def test_an_epoch_that_was_interrupted_before_it_began_leaves_none_of_its_batches(interrupted: Any) -> None:
    loader = staying(device="cpu")
    list(loader)
    loader.set_epoch(9)
    with interrupted():
        iter(loader)
    loader.set_epoch(5)
    assert epoch(loader) == plainly(5)
    assert len(copying()) == 1


def test_another_epoch_that_was_set_is_begun_though_that_was_interrupted(interrupted: Any) -> None:
    loader = staying(device="cpu")
    list(loader)
    batches: Any = iter(loader)
    loader.set_epoch(7)
    assert until(lambda: len(batches._shelf.items) >= 1), "a batch of epoch 1"
    with interrupted():
        next(batches)
    first = next(batches)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (7, 1)
    assert [frozen(first), *map(frozen, batches)] == plainly(7)


def test_what_was_to_be_begun_is_forgotten_when_another_epoch_is_gone_on_into(interrupted: Any) -> None:
    loader = staying(batch_size=SIZE, prefetch_batches=6, device="cpu")
    list(loader)
    batches: Any = iter(loader)
    assert until(lambda: batches._source.epoch == 3), "epochs of one batch: two lie on the shelf"
    loader.set_epoch(7)
    with interrupted():
        next(batches)
    loader.set_epoch(3)
    assert epoch(loader) == plainly(3, batch_size=SIZE)


@pytest.mark.parametrize("taken", [1, BATCHES + 1])
def test_an_end_that_was_interrupted_does_not_go_on(interrupted: Any, taken: int) -> None:
    loader = staying(device="cpu")
    batches: Any = iter(loader)
    for _ in range(taken):
        next(batches, None)
    with interrupted():
        batches._shutdown_workers()
    if taken <= BATCHES:
        with pytest.raises(PenstockError, match="start a new one"):
            next(batches)
    assert epoch(loader) == plainly(1)


@pytest.mark.parametrize("device", ["cpu", None])
def test_an_epoch_whose_begin_was_interrupted_does_not_look_like_one_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, device: Any
) -> None:
    abort = EngineIterator._abort

    def interrupt(engine: EngineIterator, begun: bytes) -> None:
        monkeypatch.setattr(EngineIterator, "_abort", abort)
        abort(engine, begun)
        raise KeyboardInterrupt

    loader = staying(device=device)
    list(loader)
    batches = iter(loader)
    loader.set_epoch(7)
    monkeypatch.setattr(EngineIterator, "_abort", interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    with pytest.raises(PenstockError, match="its place is lost"):
        next(batches)
    loader.set_epoch(5)
    assert epoch(loader) == plainly(5)


@pytest.mark.parametrize("comes", ["never", "at once", "late"])
def test_a_thread_whose_start_was_interrupted_is_one_in_the_end(
    monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    start = threading.Thread.start

    def late(run: Callable[[], None]) -> None:
        time.sleep(0.05)
        run()

    def fails(thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        if comes == "late":
            monkeypatch.setattr(thread, "run", partial(late, thread.run))
        if comes != "never":
            start(thread)
        raise KeyboardInterrupt

    loader = staying(Slow(), device="cpu")
    batches = iter(loader)
    monkeypatch.setattr(threading.Thread, "start", fails)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert [*map(frozen, batches)] == plainly(0)
    assert until(lambda: len(copying()) == 1)


def test_a_loader_that_is_dropped_between_epochs_ends_its_thread_and_processes() -> None:
    loader = staying(device="cpu")
    list(loader)
    ends = ends_with_it(loader)
    with ends:
        del loader
