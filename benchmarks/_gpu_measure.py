"""Training, and what can be said of how it was fed."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import _machine
import torch
from _gpu_feeds import CLASSES, Feed, Ground, Lane, feeding
from _gpu_plan import SUBJECTS, Choice, Job
from _prepare_subjects import import_torchvision

SEARCH_BATCHES = 20
"""That the search for the lane's share takes."""
AHEAD = 3
"""Batches for each worker that may have been made before anybody asked: a window that begins with those flatters."""
LONGEST_WARMUP, LONGEST_CHOICE = 4.0, 15.0
"""Times the warm-up that was asked for, where batches come slowly; and while the loader still chooses."""
IN_FLIGHT = 2
"""Steps that may be told to the device before the loop waits: a batch counts when it was trained on, not when it was asked for."""


class Training:
    """A model that trains on whatever comes, in bfloat16 and channels-last."""

    def __init__(self, name: str, device: str) -> None:
        self.name, self.device = name, device
        torch.backends.cudnn.benchmark = True
        model: Any = OWN[name]() if name in OWN else getattr(import_torchvision().models, name)()
        self.model = model.to(device).to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.loss = torch.nn.CrossEntropyLoss()

    def step(self, images: torch.Tensor, targets: torch.Tensor) -> None:
        images = images if images.dim() == 4 else images.unsqueeze(1)  # spectrograms
        images = images.to(self.device, torch.bfloat16, non_blocking=True, memory_format=torch.channels_last)
        targets = targets.to(self.device, non_blocking=True)
        with torch.autocast(self.device.partition(":")[0], torch.bfloat16):
            loss = self.loss(self.model(images), targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def finish(self) -> None:
        """Wait until the device has done all that it was told to do."""
        if self.device != "cpu":
            torch.cuda.synchronize()


class Pace:
    """Keeps the loop from running far ahead of the device."""

    def __init__(self, device: str) -> None:
        self._events: deque[Any] | None = None if device == "cpu" else deque()

    def __call__(self) -> None:
        if self._events is None:
            return
        event: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()  # whoever spins for it takes a core from the workers
        self._events.append(event)
        if len(self._events) > IN_FLIGHT:
            self._events.popleft().synchronize()


def tiny() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 7, stride=8),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, CLASSES),
    )


def sound() -> torch.nn.Module:
    """ResNet-18 on spectrograms."""
    model: torch.nn.Module = import_torchvision().models.resnet18()
    model.conv1 = torch.nn.Conv2d(1, 64, 7, stride=2, padding=3, bias=False)
    return model


OWN = {"tiny": tiny, "sound": sound}


class CpuClock:
    """CPU seconds of this process and its descendants from now on, also of those that begin later."""

    def __init__(self) -> None:
        self._before = self._clocks()

    def _clocks(self) -> dict[int, float]:
        return _machine.cpu_clocks(_machine.process_tree(os.getpid()))

    def seconds(self) -> float:
        return sum(now - self._before.get(pid, 0.0) for pid, now in self._clocks().items())


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Window(NamedTuple):
    """How long to train before and while measuring."""

    warmup_s: float
    seconds: float
    least_batches: int
    """To be warm, within `LONGEST_WARMUP`."""
    multiple: int
    """Batches are counted in whole rounds of so many: they come in bursts, one from each worker."""
    until_chosen: bool = False
    """To be warm, the loader has also chosen how to share the device."""


def window_of(job: Job, chosen: Choice) -> Window:
    subject = SUBJECTS[job.subject]
    if subject.kind == "limit":
        return Window(min(3.0, chosen.warmup), min(4.0, chosen.seconds), 3, 1)
    least = AHEAD * job.workers + (SEARCH_BATCHES if subject.searches else 0)
    multiple = job.workers if subject.bursts else 1
    return Window(chosen.warmup, chosen.seconds, least, multiple, until_chosen=subject.chooses)


def warm_up(training: Training, feed: Feed, window: Window) -> int:
    """Train until everything has found its pace; the batches it took."""
    start, batches = time.perf_counter(), 0
    while True:
        training.step(*next(feed.batches))
        batches += 1
        took = time.perf_counter() - start
        choosing = window.until_chosen and feed.is_choosing
        longest = LONGEST_CHOICE if choosing else LONGEST_WARMUP
        is_warm = batches >= window.least_batches and not choosing
        if took >= window.warmup_s and (is_warm or took >= longest * window.warmup_s):
            training.finish()
            return batches


def measured(training: Training, feed: Feed, window: Window) -> dict[str, Any]:
    """Train for a while and say how it went."""
    began = time.perf_counter()
    warm = warm_up(training, feed, window)
    warm_s = time.perf_counter() - began
    lane, clock, start = feed.lane(), CpuClock(), time.perf_counter()
    waits: list[float] = []
    images = 0
    while time.perf_counter() < start + window.seconds or len(waits) % window.multiple:
        before = time.perf_counter()
        batch = next(feed.batches)
        waits.append(time.perf_counter() - before)
        training.step(*batch)
        images += len(batch[0])
    training.finish()
    took = time.perf_counter() - start
    return {
        "images_per_s": images / took,
        "seconds": took,
        "batches": len(waits),
        "warmup_batches": warm,
        "warmup_s": warm_s,
        "wait_p50_ms": 1e3 * statistics.median(waits),
        "wait_p99_ms": 1e3 * quantile(waits, 0.99),
        "cpu_s_per_1000": 1e3 * clock.seconds() / images,
        **lane_figures(lane, feed.lane()),
        **feed.facts(),
    }


def lane_figures(before: Lane | None, after: Lane | None) -> dict[str, float]:
    """What share the lane took between the two."""
    before = before or Lane(0, 0, 0, 0, 0, None)
    if after is None or after.samples <= before.samples:
        return {}
    samples = after.samples - before.samples
    found = {
        "lane_share": (after.packed - before.packed) / samples,
        "finished_share": (after.finished - before.finished) / samples,
        "resident_share": (after.resident - before.resident) / samples,
        "by_cpu_share": (after.by_cpu - before.by_cpu) / samples,
    }
    return found if after.share is None else {**found, "share_at_end": after.share}


def throughput(job: Job, training: Training, ground: Ground, chosen: Choice) -> dict[str, Any]:
    with feeding(job, SUBJECTS[job.subject], ground) as feed:
        return measured(training, feed, window_of(job, chosen))
