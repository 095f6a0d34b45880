"""Random jobs for comparing divisions of batches between workers and a GPU (`sim.division`), and the least time each can take.

A sample is read, which a worker or its core must do for every sample. Its pixels are then made by a worker or by the GPU. Both costs grow
with its pixels; only these are known before. Seconds are of no machine: only ratios count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from penstock.policy.sharing import Sharing

Floats = NDArray[np.float64]
SAMPLE_S = 0.002
"""Mean seconds in which one worker reads a sample and makes its pixels."""
TINY = (1, 2, 4, 4, 4, 4, 8)
"""Samples per task of the paper's division; its default is 4."""
BATCHES = 120
"""Of a job, by default: a search that moves by one a batch needs some tens."""
CHANGING = 1 / 3
"""Share of jobs whose number of workers changes."""


class CostSpread(StrEnum):
    ALIKE = "alike"
    PHOTOS = "photos"
    HEAVY = "heavy-tailed"
    """One sample in 20 has 8 times the pixels, beside a wider spread."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DivisionJob:
    """One rank's training job."""

    seed: int
    workers: int
    workers_later: int
    """From `changes_s` on."""
    batch: int
    batches: int
    window: int
    """Batches prefetched."""
    tiny: int
    train_s: float
    """A training step, with the GPU for itself."""
    beside: float
    """Speed of the GPU's preparing beside training, of its speed alone."""
    burden: float
    """What training loses meanwhile, as a share of what the GPU prepares: 1 gains nothing over taking turns."""
    launch_s: float
    """Fixed cost of a GPU task."""
    read_s: float
    costs: CostSpread
    pixels: Floats
    """Of each sample."""
    cpu_s: Floats
    """A worker's time for its pixels, the read apart."""
    gpu_s: Floats
    changes_s: float = float("inf")

    @property
    def alone_over_training(self) -> float:
        """Time of preparing by the first workers alone, over that of training alone."""
        alone_s = float(self.cpu_s.sum()) + self.read_s * len(self.cpu_s)
        return alone_s / self.workers / (self.train_s * self.batches)

    @property
    def speed(self) -> float:
        """Of the GPU beside one worker, on pixels."""
        return float(self.cpu_s.mean() / self.gpu_s.mean())

    @property
    def launch_samples(self) -> float:
        """Cost of a launch, in samples that the GPU makes meanwhile."""
        return self.launch_s / float(self.gpu_s.mean())

    @property
    def changes(self) -> bool:
        return self.workers_later != self.workers


def draw_job(seed: int, *, batches: int = BATCHES) -> DivisionJob:
    rng = np.random.default_rng(seed)
    workers, batch = int(rng.integers(1, 17)), int(rng.choice((64, 128)))
    count, costs = batch * batches, list(CostSpread)[rng.integers(3)]
    spread = {CostSpread.ALIKE: 0.1, CostSpread.PHOTOS: 0.5, CostSpread.HEAVY: 0.7}[costs]
    pixels = rng.lognormal(0, spread, count)
    if costs is CostSpread.HEAVY:
        pixels *= np.where(rng.random(count) < 0.05, 8.0, 1.0)
    pixels /= pixels.mean()
    noise = rng.choice((0.05, 0.3))  # drawn ops differ
    fixed, gpu_fixed = float(rng.uniform(0.05, 0.4)), float(rng.uniform(0.1, 0.7))
    cpu = (fixed + (1 - fixed) * pixels) * rng.lognormal(0, noise, count)
    read = float(rng.uniform(0.02, 0.3))
    cpu_s = cpu * (SAMPLE_S * (1 - read) / cpu.mean())
    gpu_mean_s = SAMPLE_S / log_uniform(rng, 1.5, 30)
    alone_over_training = log_uniform(rng, 0.5, 8)
    job = DivisionJob(
        seed=seed,
        workers=workers,
        workers_later=workers,
        batch=batch,
        batches=batches,
        window=int(rng.choice((4, 8, 16))),
        tiny=int(rng.choice(TINY)),
        train_s=SAMPLE_S * batch / workers / alone_over_training,
        beside=float(rng.uniform(0.2, 0.9)),
        burden=float(rng.uniform(0.3, 1.0)),
        launch_s=gpu_mean_s * log_uniform(rng, 0.1, 8),
        read_s=SAMPLE_S * read,
        costs=costs,
        pixels=pixels,
        cpu_s=cpu_s,
        gpu_s=(gpu_fixed + (1 - gpu_fixed) * pixels) * gpu_mean_s,
    )
    return changed(job, int(rng.integers(1, 17))) if rng.random() < CHANGING else job


def log_uniform(rng: np.random.Generator, least: float, most: float) -> float:
    return float(np.exp(rng.uniform(np.log(least), np.log(most))))


def changed(job: DivisionJob, workers_later: int) -> DivisionJob:
    """Return the job with other workers from half of its time on."""
    half_s = least_s(job, Sharing.CONCURRENT) / 2
    return replace(job, workers_later=workers_later, changes_s=half_s)


def part_of(job: DivisionJob, begin: int, end: int) -> DivisionJob:
    """Return the job with these batches only."""
    which = slice(begin * job.batch, end * job.batch)
    return replace(
        job,
        batches=end - begin,
        pixels=job.pixels[which],
        cpu_s=job.cpu_s[which],
        gpu_s=job.gpu_s[which],
    )


def least_s(job: DivisionJob, mode: Sharing) -> float:
    """Return a time that no division beats: samples divide at will, tasks cost nothing to launch, and all batches are there from the start."""
    order = np.argsort(-job.cpu_s / job.gpu_s, kind="stable")
    spared_s = np.concatenate(([0.0], np.cumsum(job.cpu_s[order])))
    moved_s = np.concatenate(([0.0], np.cumsum(job.gpu_s[order])))
    # The first samples of the order are the best for the GPU: workers' time spared, GPU's time spent.
    by_workers_s = float(job.cpu_s.sum()) + job.read_s * len(job.cpu_s)
    train_s = job.train_s * job.batches

    def is_enough(seconds: float) -> bool:
        spare_s = by_workers_s - capacity(job, seconds)
        if spare_s > spared_s[-1]:
            return False
        lane_s = float(np.interp(max(0.0, spare_s), spared_s, moved_s))
        return card_s(train_s, lane_s, *rates_of(job, mode)) <= seconds

    low, high = 0.0, train_s + by_workers_s
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return low


def capacity(job: DivisionJob, seconds: float) -> float:
    """Return the workers' time up to then."""
    before = min(seconds, job.changes_s)
    return job.workers * before + job.workers_later * (seconds - before)


def rates_of(job: DivisionJob, mode: Sharing) -> tuple[float, float]:
    """Return the speed of preparing and of training while the GPU does both, of their speeds alone."""
    return (job.beside, 1.0 - job.burden * job.beside) if mode is Sharing.CONCURRENT else (0.0, 1.0)


def card_s(train_s: float, lane_s: float, lane_rate: float, train_rate: float) -> float:
    """Return the least time in which a GPU does both."""
    if lane_rate * train_s <= train_rate * lane_s:  # all of training has preparing beside it
        return train_s / train_rate + lane_s - lane_rate * train_s / train_rate
    return train_s + (1.0 - train_rate) * lane_s / lane_rate
