"""One schedule of kills and restores, drawn from a seed, played with real processes and signals.

Workers and agents are killed by SIGKILL at random moments, the number of workers changes, the loader is stopped, saved and resumed
with another number of workers; what is delivered must be, batch for batch and bit for bit, what one process alone delivers. Iterable datasets, which
can say where they stand, depend on the number of workers: theirs stays, and nobody is killed in the run they are held against.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from penstock import DataLoader

WORKER_KILLS = 2
"""Per loader: a third death could fall on the same sample, which then rightly is an error."""
AGENT_KILLS = 2


class Noisy(Dataset[Any]):
    """Samples that draw from all three global generators and take a moment."""

    def __init__(self, length: int, pause_s: float) -> None:
        self.length, self.pause_s = length, pause_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(self.pause_s)
        noise = torch.rand(5 + index % 3 if self.length % 2 else 5)
        return {"index": index, "noise": noise, "more": np.random.rand(2), "text": "x" * random.randrange(40)}


class Stream(IterableDataset[Any]):
    """Numbers, each worker its share of them, that can be gone on with."""

    def __init__(self, length: int, pause_s: float) -> None:
        self.length, self.pause_s, self.at = length, pause_s, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        mine = range(info.id if info else 0, self.length, info.num_workers if info else 1)
        while self.at < len(mine):
            time.sleep(self.pause_s)
            self.at += 1
            yield torch.full((3,), mine[self.at - 1])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def as_lists(samples: list[Any]) -> dict[str, list[Any]]:
    """A collate for ragged samples."""
    return {key: [sample[key] for sample in samples] for key in samples[0]}


def digest(batch: Any) -> str:
    """A hash of everything in a batch."""
    found = hashlib.blake2b(digest_size=12)

    def feed(value: Any) -> None:
        if isinstance(value, dict):
            for key in value:
                found.update(key.encode())
                feed(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                feed(item)
        elif isinstance(value, (torch.Tensor, np.ndarray)):
            found.update(str(value.dtype).encode() + str(tuple(value.shape)).encode())
            found.update(np.ascontiguousarray(value).tobytes())
        else:
            found.update(repr(value).encode())

    feed(batch)
    return found.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What happens in one run."""

    seed: int
    length: int
    batch_size: int
    epochs: int
    streams: bool
    ragged: bool
    task_size: int | str
    persistent: bool
    workers: tuple[int, ...]
    """Number of workers, before the first restore and after each."""
    restores: tuple[int, ...]
    """Batches, counted over all epochs, behind which the loader is saved, dropped and resumed."""
    kills: tuple[tuple[int, float, str], ...]
    """(batch or -1, seconds after it or after the start, whom): `worker` or `agent`."""
    resizes: tuple[tuple[int, int], ...]
    """(batch, number of workers from there on)."""

    @classmethod
    def draw(cls, seed: int) -> Schedule:
        rng = random.Random(seed)
        length, batch_size, epochs = rng.randrange(20, 61), rng.randrange(2, 8), rng.choice((1, 1, 2))
        batches = -(-length // batch_size) * epochs
        restores = tuple(sorted(rng.sample(range(batches), rng.choice((0, 1, 1, 2)))))
        kills = [
            (rng.randrange(-1, batches), rng.random() * 0.02, "worker")
            for _ in range(rng.randrange(WORKER_KILLS + 1))
        ]
        kills += [
            (rng.randrange(-1, batches), rng.random() * 0.02, "agent")
            for _ in range(rng.randrange(AGENT_KILLS + 1))
        ]
        streams = rng.random() < 0.15
        workers = [rng.randrange(1, 5) for _ in range(len(restores) + 1)]
        return cls(
            seed=seed,
            length=length,
            batch_size=batch_size,
            epochs=epochs,
            streams=streams,
            ragged=not streams and bool(length % 2),
            task_size=rng.choice(("auto", 1, 2, 5)),
            persistent=rng.random() < 0.3,
            workers=tuple(workers[:1] * len(workers) if streams else workers),
            restores=restores,
            kills=tuple(sorted(kills)),
            resizes=() if streams else resizes(seed, batches),
        )

    def loader(self, workers: int, pause_s: float) -> DataLoader[Any]:
        dataset: Any = Stream(self.length, pause_s) if self.streams else Noisy(self.length, pause_s)
        return DataLoader(
            dataset,
            self.batch_size,
            shuffle=not self.streams,
            num_workers=workers,
            collate_fn=as_lists if self.ragged else None,
            persistent_workers=self.persistent and workers > 0,
            seed=self.seed,
            task_size=self.task_size,
        )


def resizes(seed: int, batches: int) -> tuple[tuple[int, int], ...]:
    """Drawn apart, so that a seed's other facts are what they were before there were any."""
    rng = random.Random(f"resizes of {seed}")
    return tuple((rng.randrange(batches), rng.randrange(1, 5)) for _ in range(rng.choice((0, 0, 1, 2))))


def expected(schedule: Schedule) -> list[str]:
    """What one process alone delivers, or the same workers undisturbed where the dataset looks at them."""
    loader = schedule.loader(schedule.workers[0] if schedule.streams else 0, 0.0)
    return [digest(batch) for _ in range(schedule.epochs) for batch in loader]


def play(schedule: Schedule, count: int) -> tuple[list[str], int]:
    """What is delivered while the schedule runs, until `count` batches are, and how many kills found somebody."""
    delivered: list[str] = []
    hits: list[int] = []
    timers: list[threading.Timer] = []
    restores, workers = list(schedule.restores), list(schedule.workers)
    loader = schedule.loader(workers.pop(0), 0.001)

    def arm(at: int) -> None:
        for when, delay_s, whom in schedule.kills:
            if when == at:
                timers.append(threading.Timer(delay_s, killer(loader, whom, schedule.seed + at, hits)))
                timers[-1].start()

    while len(delivered) < count:
        iterator = iter(loader)
        if not delivered:
            arm(-1)
        for batch in iterator:
            at = len(delivered)
            delivered.append(digest(batch))
            arm(at)
            for when, number in schedule.resizes:
                if when == at:
                    loader.set_workers(number)
            if restores and restores[0] == at:
                restores.pop(0)
                state = json.loads(json.dumps(loader.state_dict()))
                del iterator, batch
                loader = schedule.loader(workers.pop(0), 0.001)
                loader.load_state_dict(state)
                break
    for timer in timers:
        timer.cancel()
        timer.join()
    return delivered, len(hits)


def killer(loader: DataLoader[Any], whom: str, seed: int, hits: list[int]) -> Callable[[], None]:
    def kill() -> None:
        stats = loader.stats()
        pids = (
            stats["worker_pids"] if whom == "worker" else [stats["agent_pid"]] if stats["agent_pid"] else []
        )
        if pids:
            with suppress(ProcessLookupError):
                os.kill(random.Random(seed).choice(pids), signal.SIGKILL)
                hits.append(seed)

    return kill


def run(seed: int) -> dict[str, Any]:
    """Play one schedule and say how it went."""
    schedule = Schedule.draw(seed)
    whole = expected(schedule)
    try:
        delivered, kills = play(schedule, len(whole))
    except Exception as exc:
        return {"seed": seed, "ok": False, "why": f"{type(exc).__name__}: {exc}"}
    lost, doubled = (
        (Counter(whole) - Counter(delivered)).total(),
        (Counter(delivered) - Counter(whole)).total(),
    )
    ok = delivered == whole
    return {
        "seed": seed,
        "ok": ok,
        "kills": kills,
        "restores": len(schedule.restores),
        "lost": lost,
        "doubled": doubled,
    }
