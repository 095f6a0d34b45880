"""Of `scripts/bench gpu --part reuse`: training from partly prepared samples that are used several times.

paper: ResNet-50 fed by 4 workers, as Revamper's (figure 9). workers: 2 to 6 of them (figure 13). lane: together with the GPU lane. small: a
cache for 16 % of the samples, with the lane and without (FusionFlow's figure 11). table1: balanced eviction and the cache-aware shuffle
against reference counts and a plain shuffle (Revamper's table 1): how evenly batches come.

Rule 1: epochs are short (`--samples`), and follow each other without a pause. All subjects of the part have the same, those too that keep nothing.
Rule 2: the first epoch prepares and keeps everything. All cores do that, before anything is timed, whatever number of workers is measured.
        What is kept on the device is not from its first batches on, so that there are two such epochs.
        With a lane, what it is given as files is not kept, and while nobody trains it is given many: so further epochs pass, with training,
        until each sample has come to be renewed once.
        From then on every batch of a balanced store has its share of misses. One with reference counts has them all in every third
        epoch: so table1 counts whole rounds of epochs.
Rule 3: how much memory is allowed follows from what the loader itself takes samples to need: it says how many it would keep in
        `PROBE` bytes. For a share of the samples it is just enough for that share, for all of them `TO_SPARE` more.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from _gpu_chains import our_dataset
from _gpu_feeds import Feed, Ground, feeding, our_loader
from _gpu_measure import Pace, Training, measured, quantile, window_of
from _gpu_plan import SUBJECTS, Choice, Job, Subject
from _reuse_naive import plainly_shuffled, reference_counted

PROBE = 64 << 20
TO_SPARE = 1.3
"""Each worker fills chunks of its own, and photos differ in size."""


class Epochs(Iterator[Any]):
    """One epoch after the other, by the same workers."""

    def __init__(self, loader: Any) -> None:
        self._loader, self._epoch = loader, iter(loader)

    def __next__(self) -> Any:
        batch = next(self._epoch, None)
        if batch is None:
            self._epoch = iter(self._loader)
            batch = next(self._epoch)
        return batch

    def close(self) -> None:
        self._epoch.close()


def reusing(job: Job, subject: Subject, ground: Ground) -> Feed:
    dataset = our_dataset(ground.root, job.workload, ground.policy, ground.samples)

    def made(**more: Any) -> Any:
        return our_loader(job, subject, ground, dataset, persistent_workers=True, **more)

    loader = (
        made()
        if not subject.reuse
        else made(reuse=wanted(options_of(subject, ground.device), subject.room, len(dataset), made))
    )
    if subject.plain_order:
        plainly_shuffled(loader)
    how: AbstractContextManager[None] = reference_counted() if subject.counted else nullcontext()
    with how:
        return Feed(batches=Epochs(loader), loader=loader)


def options_of(subject: Subject, device: str) -> dict[str, Any]:
    """Of its `penstock.Reuse`. Without a GPU all is tried but that, and samples are kept in memory."""
    if device == "cpu" and subject.reuse.get("store") == "device":
        return {**subject.reuse, "store": "memory"}
    return dict(subject.reuse)


def wanted(options: dict[str, Any], room: float, samples: int, made: Callable[..., Any]) -> Any:
    """A `penstock.Reuse` with as much memory as such a share of the samples needs."""
    import penstock

    def of(max_bytes: int) -> Any:
        return penstock.Reuse(**options, max_bytes=max_bytes)

    def kept_in(max_bytes: int) -> int:
        return int(made(reuse=of(max_bytes)).stats()["reuse"]["kept"])

    return of(bytes_for(room, samples, kept_in))


def bytes_for(room: float, samples: int, kept_in: Callable[[int], int]) -> int:
    """Memory for a share of the samples, by how many a loader keeps in so many bytes."""
    probe = PROBE
    while (kept := kept_in(probe)) == samples and probe > 1:  # there is room to spare, so that says nothing
        probe //= 4
    if not kept:
        raise ValueError(f"of {samples} samples not one would be kept in {probe:,} bytes")
    needed = room * samples * probe / kept
    if room >= 1.0:
        return max(PROBE, int(TO_SPARE * needed))
    few, enough = 0, int(needed)
    while kept_in(enough) < round(room * samples):  # memory is given out in pieces, beside an index
        few, enough = enough, 2 * enough
    while enough - few > enough // 64:
        middle = (few + enough) // 2
        few, enough = (few, middle) if kept_in(middle) >= round(room * samples) else (middle, enough)
    return enough


def fill(feed: Feed, subject: Subject, workers: int) -> float:
    """The first epoch, or two, by all cores; the seconds it took."""
    started, loader = time.perf_counter(), feed.loader
    many = max(workers, (os.cpu_count() or 2) - 1)
    if not subject.auto_workers and many > workers:
        loader.set_workers(many)
    for _ in range(len(loader) * (2 if subject.reuse.get("store") == "device" else 1)):
        next(feed.batches)
    if loader.num_workers != workers and not subject.auto_workers:
        loader.set_workers(workers)
    return time.perf_counter() - started


class Stamps:
    """When each step was told to a device that is never far behind."""

    def __init__(self, device: str) -> None:
        self._pace, self.at = Pace(device), list[float]()

    def __call__(self) -> None:
        self._pace()
        self.at.append(time.perf_counter())


def evenness(at: Sequence[float]) -> dict[str, float]:
    """How evenly batches were trained on: of the times between them, deviation over mean, and the 99th percentile over the median."""
    between = [after - before for before, after in itertools.pairwise(at)]
    if len(between) < 2:
        return {}
    mean, median = statistics.fmean(between), statistics.median(between)
    return {
        "interval_ms": 1e3 * mean,
        "interval_cv": statistics.pstdev(between) / mean,
        "interval_p99_to_p50": quantile(between, 0.99) / median,
    }


def store_figures(
    before: dict[str, Any] | None, after: dict[str, Any] | None, samples: int
) -> dict[str, Any]:
    """What was found in the store between two looks at it, and what is in it."""
    if not before or not after:
        return {}
    found, missed = (after.get(name, 0) - before.get(name, 0) for name in ("found", "missed"))
    shares = {"found_share": found / (found + missed)} if found + missed else {}
    return shares | {
        "split": after["split"],
        "kept_share": after["kept"] / samples,
        "refused": after.get("refused", 0),
        "held_gb": after.get("held_bytes", 0) / 1e9,
    }


def reuse(job: Job, training: Training, ground: Ground, chosen: Choice) -> dict[str, Any]:
    subject = SUBJECTS[job.subject]
    with feeding(job, subject, ground) as feed:
        window, stamps, filling = window_of(job, chosen), Stamps(ground.device), {}
        if subject.reuse:
            filling = {"fill_s": fill(feed, subject, job.workers)}
            if subject.lane:
                more = subject.reuse["times"] * len(feed.loader)
                window = window._replace(least_batches=window.least_batches + more)
            if job.group == "table1":
                window = window._replace(multiple=subject.reuse["times"] * len(feed.loader))
        before = store_of(feed)
        found = measured(training, feed, window, stamps)
        samples = 0 if feed.loader is None else len(feed.loader.dataset)
        kept = store_figures(before, store_of(feed), samples)
    return {**found, **evenness(stamps.at), **kept, **filling, "samples": samples}


def store_of(feed: Feed) -> dict[str, Any] | None:
    found: dict[str, Any] | None = None if feed.loader is None else feed.loader.stats().get("reuse")
    return found
