"""With workers that stay, the next epoch is prepared and brought to the device before it is asked for: whatever is asked for instead, batches
are those of a loader that does nothing ahead."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from penstock import DataLoader
from penstock.engine.device import DeviceIterator
from penstock.engine.mover import Mover
from penstock.gpu.gate import Gate
from tests.integration.noisy import SIZE, Noisy, epoch, frozen, order_of
from tests.integration.test_device_cpu import Fails, copying, until
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
    batches = iter(loader)
    assert len(list(batches)) == BATCHES
    assert until(lambda: loader.stats()["batches"] >= BATCHES + 2)
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


@pytest.mark.parametrize("kept_there", [True, False])
def test_where_samples_are_kept_on_the_device_an_epochs_batches_are_made_before_the_next_ones(
    kept_there: bool,
) -> None:
    """They are written where those are read."""
    made, begun = threading.Event(), []

    class Making:
        def order(self, stream: Any) -> None:
            pass

        def is_over(self) -> bool:
            return made.is_set()

        def outlast(self, until_s: float) -> None:
            assert made.wait(until_s - time.monotonic())

    class Lane:
        gate, residents = Gate(), object() if kept_there else None

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
        assert until(lambda: len(begun) > 1, limit_s=1.0) is not kept_there
        made.set()
        assert until(lambda: len(begun) > 1)
        assert list(iterator) == []
        loader._iterate_workers(iterator, fresh=False)
        assert len(list(iterator)) == 1
    finally:
        iterator.close()


def test_a_loader_that_is_dropped_between_epochs_ends_its_thread_and_processes() -> None:
    loader = staying(device="cpu")
    list(loader)
    assert len(copying()) == 1
    processes = [loader.stats()["agent_pid"], *loader.stats()["worker_pids"]]
    gc.disable()
    try:
        del loader
        assert until(lambda: not copying())
        assert until(lambda: not any(map(psutil.pid_exists, processes)))
    finally:
        gc.enable()
