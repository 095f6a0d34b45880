"""Of `scripts/bench gpu --part reuse`: training from partly prepared samples that are used several times.

paper: ResNet-50 fed by 4 workers, as Revamper's (figure 9). workers: 2 to 6 of them (figure 13). lane: together with the GPU lane.

Rule 1: epochs are short (`--samples`), and follow each other without a pause. All subjects of the part have the same, those too that keep nothing.
Rule 2: the first epoch prepares and keeps everything. All cores do that, before anything is timed, whatever number of workers is measured.
        What is kept on the device is not from its first batches on, so that there are two such epochs.
        With a lane, what it is given as files is not kept, and while nobody trains it is given many: so further epochs pass, with training,
        until each sample has come to be renewed once.
        From then on every batch has its share of misses.
Rule 3: the store has room for all samples. The loader says how many it would keep in `PROBE` bytes; `TO_SPARE` comes on top.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from _gpu_chains import our_dataset
from _gpu_feeds import Feed, Ground, feeding, our_loader
from _gpu_measure import Training, measured, window_of
from _gpu_plan import SUBJECTS, Choice, Job, Subject

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
    dataset = our_dataset(ground.root, job.workload, ground.samples)

    def made(**more: Any) -> Any:
        return our_loader(job, subject, ground, dataset, persistent_workers=True, **more)

    loader = (
        made()
        if not subject.reuse
        else made(reuse=wanted(options_of(subject, ground.device), len(dataset), made))
    )
    return Feed(batches=Epochs(loader), loader=loader)


def options_of(subject: Subject, device: str) -> dict[str, Any]:
    """Of its `penstock.Reuse`. Without a GPU all is tried but that, and samples are kept in memory."""
    if device == "cpu" and subject.reuse.get("store") == "device":
        return {**subject.reuse, "store": "memory"}
    return dict(subject.reuse)


def wanted(options: dict[str, Any], samples: int, made: Callable[..., Any]) -> Any:
    """A `penstock.Reuse` with memory for all samples."""
    import penstock

    def kept_in(max_bytes: int) -> int:
        reuse = penstock.Reuse(**options, max_bytes=max_bytes)
        return int(made(reuse=reuse).stats()["reuse"]["kept"])

    return penstock.Reuse(**options, max_bytes=bytes_for(samples, kept_in))


def bytes_for(samples: int, kept_in: Callable[[int], int]) -> int:
    """Memory for all samples, by how many a loader keeps in so many bytes."""
    kept = kept_in(PROBE)
    if not kept:
        raise ValueError(f"of {samples} samples not one would be kept in {PROBE:,} bytes")
    return max(PROBE, int(TO_SPARE * samples * PROBE / kept))


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
    with feeding(job, subject, ground, reusing) as feed:
        window, filling = window_of(job, chosen), {}
        if subject.reuse:
            filling = {"fill_s": fill(feed, subject, job.workers)}
            if subject.lane:
                more = subject.reuse["times"] * len(feed.loader)
                window = window._replace(least_batches=window.least_batches + more)
        before = store_of(feed)
        found = measured(training, feed, window)
        samples = 0 if feed.loader is None else len(feed.loader.dataset)
        kept = store_figures(before, store_of(feed), samples)
    return {**found, **kept, **filling, "samples": samples}


def store_of(feed: Feed) -> dict[str, Any] | None:
    found: dict[str, Any] | None = None if feed.loader is None else feed.loader.stats().get("reuse")
    return found
