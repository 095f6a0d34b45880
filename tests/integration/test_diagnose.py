"""`loader.diagnose()` of real runs: with samples that sleep, samples that compute, and training that is the limit."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import torch

from penstock import DataLoader
from penstock.policy.diagnosis import KEEPS_UP, diagnose

CORES = 2
"""That the advice is for, whatever machine this is."""


class Samples:
    """Each sleeps for a while, or computes for a while."""

    def __init__(self, size: int, *, sleep_s: float = 0.0, cpu_s: float = 0.0) -> None:
        self.size, self.sleep_s, self.cpu_s = size, sleep_s, cpu_s

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        end_s = time.thread_time() + self.cpu_s
        while time.thread_time() < end_s:
            pass
        return torch.zeros(4)


def trained(dataset: Any, *, step_s: float = 0.0, **settings: Any) -> DataLoader[Any]:
    loader: DataLoader[Any] = DataLoader(dataset, 4, **settings)
    for _ in loader:
        time.sleep(step_s)
    return loader


@pytest.mark.parametrize("device", [None, "cpu"])
def test_training_that_is_the_limit_is_told_so_though_workers_took_time_to_start(device: str | None) -> None:
    def slow_start(_: int) -> None:
        time.sleep(1.0)

    loader = trained(Samples(120), step_s=0.1, num_workers=2, device=device, worker_init_fn=slow_start)
    assert loader.stats()["wait_share"] > 0.15
    assert loader.diagnose() == KEEPS_UP


def test_what_the_thread_of_a_device_waits_for_is_no_wait_of_training() -> None:
    """Workers take 40 ms for a batch and training 60 ms; the thread between them asks for the next at once."""
    loader = trained(Samples(160, sleep_s=0.01), step_s=0.06, num_workers=1, device="cpu", prefetch_batches=1)
    assert loader.diagnose() == KEEPS_UP


def test_blocked_samples_are_advised_more_workers_than_cores() -> None:
    loader = trained(Samples(80, sleep_s=0.05), num_workers=2)
    recent = loader.stats()["recent"]
    assert recent["cpu_s"] < 0.3 * recent["busy_s"]
    said = diagnose(loader.stats(), cores=CORES)
    assert int(re.findall(r"(\d+) more are predicted to", said)[0]) > CORES, said
    assert "would not" not in said
    more = trained(Samples(320, sleep_s=0.05), num_workers=16)
    rates = [stats["samples"] / stats["elapsed_s"] for stats in (recent, more.stats()["recent"])]
    assert rates[1] > 2 * rates[0]


def test_computed_samples_on_all_cores_are_not_advised_more_workers() -> None:
    loader = trained(Samples(160, cpu_s=0.01), num_workers=CORES)
    recent = loader.stats()["recent"]
    assert recent["cpu_s"] > 0.6 * recent["busy_s"]
    said = diagnose(loader.stats(), cores=CORES)
    assert said.endswith("or more CPUs would help, more workers would not.")


def test_cpu_time_of_workers_is_told_beside_their_busy_time() -> None:
    stats = trained(Samples(40, sleep_s=0.01, cpu_s=0.005), num_workers=2).stats()
    assert len(stats["worker_cpu_s"]) == len(stats["worker_delayed_s"]) == len(stats["worker_busy_s"]) == 2
    assert 40 * 0.005 <= sum(stats["worker_cpu_s"]) <= sum(stats["worker_busy_s"])
    assert sum(stats["worker_busy_s"]) >= 40 * 0.015


def test_another_number_of_workers_is_judged_by_itself() -> None:
    loader: DataLoader[Any] = DataLoader(Samples(160, sleep_s=0.02), 4, num_workers=1)
    for number, _ in enumerate(loader):
        if number == 20:
            assert "more are predicted to" in loader.diagnose()
            loader.set_workers(8)
        if number == 24:
            assert "of a steady run so far" in loader.diagnose()
    assert loader.stats()["recent"]["batches"] <= 19
