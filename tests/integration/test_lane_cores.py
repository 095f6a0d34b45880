"""A GPU lane that "auto" has turned on takes cores from workers while it works, within the number that the user gave."""

from __future__ import annotations

import os
import signal
from itertools import islice
from typing import Any

import pytest

from penstock import DataLoader
from penstock.client.worker_count import count_workers
from tests.integration.test_set_workers import Slow, flat, settled

BESIDE_LANE = count_workers(lane=True)


def long_loader(workers: int, pause_s: float = 0.002) -> DataLoader[Any]:
    return DataLoader(Slow(100_000, pause_s), 8, num_workers=workers, seed=1)


@pytest.mark.parametrize("more", [1, 2])
def test_workers_beyond_the_lanes_share_leave_and_come_back(more: int) -> None:
    loader = long_loader(BESIDE_LANE + more)
    engine = iter(loader)
    found = [next(engine)]
    engine.leave_cores(True)
    while len(loader.stats()["worker_pids"]) > BESIDE_LANE:
        found.append(next(engine))
    assert loader.num_workers == BESIDE_LANE + more
    engine.leave_cores(False)
    while len(loader.stats()["worker_pids"]) < BESIDE_LANE + more:
        found.append(next(engine))
    assert flat(found) == flat(list(islice(long_loader(0, 0.0), len(found))))
    engine.close()


def test_fewer_workers_than_that_stay_as_they_are() -> None:
    loader = long_loader(1)
    engine = iter(loader)
    next(engine)
    pids = settled(loader, 1)
    engine.leave_cores(True)
    for _ in range(40):
        next(engine)
    assert loader.stats()["worker_pids"] == pids
    engine.close()


def test_a_new_agent_knows_that_the_lane_works() -> None:
    loader = long_loader(BESIDE_LANE + 1)
    engine = iter(loader)
    next(engine)
    engine.leave_cores(True)
    settled(loader, BESIDE_LANE)
    os.kill(loader.stats()["agent_pid"], signal.SIGKILL)
    while not loader.stats()["agent_restarts"]:
        next(engine)
    while len(loader.stats()["worker_pids"]) != BESIDE_LANE:
        next(engine)
    engine.close()


def test_a_number_that_is_set_meanwhile_is_kept_within_the_lanes_share() -> None:
    loader = long_loader(BESIDE_LANE)
    engine = iter(loader)
    next(engine)
    engine.leave_cores(True)
    loader.set_workers(BESIDE_LANE + 2)
    for _ in range(40):
        next(engine)
    assert len(loader.stats()["worker_pids"]) == BESIDE_LANE
    engine.leave_cores(False)
    while len(loader.stats()["worker_pids"]) < BESIDE_LANE + 2:
        next(engine)
    engine.close()
