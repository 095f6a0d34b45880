"""Rates and costs: of a loader with nothing trained, and of training with batches that are there already."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist

from penstock.client.remote_side import RemoteSide
from penstock.epochs.shard import gathered
from penstock.errors import ConfigError
from penstock.loader import DataLoader
from penstock.measure.cpu_time import children_of, cpu_times, spent_s

WARM_BATCHES, LEAST_BATCHES = 2, 3
"""Batches before a measurement, and within one at least."""
HELD = 4
"""Batches that training is measured with: they may differ in size."""
WINDOWS, WINDOW_STEPS = 5, 2
"""Parts of a measurement of training, the median of which counts; and steps of each at least."""
JOIN_S, JOINED_S = 60.0, 2.0
"""How long to wait for the first remote worker; and for another one after the last that came."""


class Span(NamedTuple):
    """What happened between two moments of a loader."""

    elapsed_s: float
    delivered: int
    """Samples."""
    local: int
    """Samples prepared by local workers."""
    remote: int
    cpu_s: float
    """CPU time of this machine: training process, agent, local workers, ferry and node process."""


class LoaderTrial:
    """A loader that is only drained. Use it in `with`."""

    def __init__(self, loader: DataLoader[Any], node: Callable[[], int] = lambda: 0) -> None:
        self._loader, self._node = loader, node
        self._batches = self._endless()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._batches.close()
        engine: Any = self._loader._iterator
        if engine is not None:
            engine.close()

    def _endless(self) -> Generator[Any, None, None]:
        while True:
            found = False
            for batch in self._loader:
                found = True
                yield batch
            if not found:
                raise ConfigError("the loader has no batches: there is nothing to measure")

    def take(self) -> tuple[Any, int]:
        """Return a batch and its number of samples."""
        before = self._loader._counters.samples
        batch = next(self._batches)
        return batch, self._loader._counters.samples - before

    def measure(self, seconds: float) -> Span:
        for _ in range(WARM_BATCHES):
            self.take()
        began_s, before, cpu = time.monotonic(), self._prepared(), cpu_times(self._pids())
        delivered = batches = 0
        while batches < LEAST_BATCHES or time.monotonic() - began_s < seconds:
            delivered += self.take()[1]
            batches += 1
        after = self._prepared()
        spent = spent_s(cpu, cpu_times([*cpu, *self._pids()]))
        local, remote = (now - then for now, then in zip(after, before, strict=True))
        return Span(time.monotonic() - began_s, delivered, local, remote, spent)

    def join(self, most: int) -> int:
        """Take batches until remote workers prepare some of them; return how many do."""
        until_s, found = time.monotonic() + JOIN_S, 0
        while found < most and time.monotonic() < until_s:
            self.take()
            present = sum(
                bool(one["samples"]) for one in self._loader._remote.record.stats.get("workers", ())
            )
            if present > found:
                found, until_s = present, time.monotonic() + JOINED_S
        return found

    def _prepared(self) -> tuple[int, int]:
        """Return the samples that local and remote workers have prepared so far."""
        live = self._loader._counters.live()
        return sum(live.samples), live.prepared - sum(live.samples)

    def _pids(self) -> list[int]:
        live = self._loader._counters.live()
        node = self._node()
        # The node's children are its services. Theirs, Ray's, may be remote workers that happen to be here.
        return [
            os.getpid(), live.agent_pid, *children_of(live.agent_pid), *live.worker_pids,
            node, *(children_of(node) if node else ()),
        ]  # fmt: skip


class NodeSeen:
    """Notes which process serves the ferry's connections."""

    def __init__(self, side: RemoteSide) -> None:
        self._open, self.pid = side.open_ferry, 0

    def open_ferry(self, facts: bytes, fds: Sequence[int]) -> Any:
        from penstock.node.messages import peer

        sock = self._open(facts, fds)
        with contextlib.suppress(OSError):
            self.pid = peer(sock)[0]
        return sock


def synchronise() -> None:
    """Wait until the device has done what was asked of it."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def agreed(steps: int) -> int:
    """Return a number of steps for all ranks: training waits for all of them in each."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return steps
    return max(numbers[0] for numbers in gathered([steps]))


def steps_for(seconds: float, step_s: float) -> int:
    """Return the steps of one window."""
    return agreed(max(WINDOW_STEPS, math.ceil(seconds / WINDOWS / max(step_s, 1e-6))))


def training_rate(held: Sequence[tuple[Any, int]], seconds: float) -> Generator[Any, None, float]:
    """Return training's own rate. Yields batches that are here already, again and again: train with each before the next."""
    for batch, _ in held:  # what is compiled or allocated in the first steps does not count
        yield batch
    synchronise()
    steps, at, rates = WINDOW_STEPS, 0, []
    for window in range(1 + WINDOWS):
        began_s, samples = time.monotonic(), 0
        for _ in range(steps):
            batch, size = held[at % len(held)]
            yield batch
            samples, at = samples + size, at + 1
        synchronise()
        took_s = time.monotonic() - began_s
        if window:  # the first tells only how long a step takes, roughly
            rates.append(samples / took_s)
        steps = steps_for(seconds, took_s / steps)
    return sorted(rates)[len(rates) // 2]


def bytes_of(batch: Any) -> int:
    """Return the bytes of a batch's tensors."""
    if isinstance(batch, torch.Tensor):
        return batch.numel() * batch.element_size()
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return sum(bytes_of(part) for part in parts)
