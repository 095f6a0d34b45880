"""`worker_kill` and `loader_kill`, which torch's own tests skip: every combination, at random times, no hang, no residue."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from typing import Any

import pytest
import torch

from penstock import DataLoader, PenstockError
from tests.conftest import FULL
from tests.fault.datasets import Drawn, Stream, expected, same
from tests.fault.programs import Zygote

ROUNDS = 200 if FULL else 2
EPOCHS = 2


@pytest.fixture(scope="module", autouse=True)
def _descriptors_of_the_driver() -> None:
    """Where memory is first pinned, the driver of an accelerator opens descriptors that it keeps: they are no leak of ours."""
    if torch.accelerator.is_available():
        torch.empty(1).pin_memory()


def combinations(test: Any) -> Any:
    for name, values in {
        "workers": [1, 2],
        "pin": [False, True],
        "persistent": [False, True],
        "kind": ["map", "iterable"],
    }.items():
        test = pytest.mark.parametrize(name, values, ids=lambda value, name=name: f"{name}={value}")(test)
    return pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")(test)


@combinations
def test_killed_workers(workers: int, pin: bool, persistent: bool, kind: str) -> None:
    options: dict[str, Any] = {"batch_size": 4, "seed": 3, "pin_memory": pin}
    rng = random.Random(f"{workers} {pin} {persistent} {kind}")
    whole = expected(Drawn(24), epochs=EPOCHS, shuffle=True, **options)
    for _ in range(ROUNDS):
        if kind == "map":
            loader = DataLoader(
                Drawn(24, pause_s=0.001),
                shuffle=True,
                num_workers=workers,
                persistent_workers=persistent,
                **options,
            )
            assert same([harmed_epoch(loader, rng) for _ in range(EPOCHS)], whole)
        else:
            loader = DataLoader(
                Stream(24, pause_s=0.001), num_workers=workers, persistent_workers=persistent, **options
            )
            for _ in range(EPOCHS):
                numbers = [int(n) for batch in harmed_epoch(loader, rng) for n in batch]
                assert len(numbers) == len(set(numbers))


def harmed_epoch(loader: DataLoader[Any], rng: random.Random) -> list[Any]:
    """The batches of an epoch in which one worker is killed at some time."""
    batches: list[Any] = []
    at = rng.randrange(4)
    iterator = iter(loader)
    while True:
        if len(batches) == at:
            at = -1
            time.sleep(rng.random() * 0.01)
            with contextlib.suppress(ProcessLookupError, IndexError):  # none has come up yet
                os.kill(rng.choice(loader.stats()["worker_pids"]), signal.SIGKILL)
        try:
            batches.append(next(iterator))
        except StopIteration:
            return batches
        except PenstockError:
            assert isinstance(loader.dataset, Stream), "a map-style dataset survives the death of a worker"


@combinations
def test_killed_training_process(
    workers: int, pin: bool, persistent: bool, kind: str, programs: Zygote
) -> None:
    rng = random.Random(f"{workers} {pin} {persistent} {kind}")
    for _ in range(ROUNDS):
        program = programs.start(
            "tests.fault.jobs:loop",
            dataset=kind,
            num_workers=workers,
            pin_memory=pin,
            persistent_workers=persistent,
            batch_size=4,
            length=24,
        )
        assert len(json.loads(program.line())) == workers
        time.sleep(rng.random() * 0.3)
        program.signal(signal.SIGKILL)
        assert program.left(within_s=1.0) == []
        programs.end_programs()
