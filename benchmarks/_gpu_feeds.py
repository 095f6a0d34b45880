"""Batches for the training, by each subject of `scripts/bench gpu`.

A feed is a context: when it is left, its loader is closed and its workers have ended, so that the next one has the machine alone.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _gpu_chains import (
    REPEATED,
    SIDE,
    our_dataset,
    photo_files,
    photo_root,
    torchvision_dataset,
    torchvision_v2_dataset,
)
from _gpu_plan import Job, Subject
from _gpu_rivals import Spdl, on_the_gpu, timms

AUDIO = "audio"
RATE, LONGEST_S, N_MELS, HOP = 16_000, 8, 80, 160
"""Of the spectrograms of `_reuse_workloads`."""
CLASSES = 1000
WARM_BYTES = 2 << 30
"""Fewer bytes of photos than this are in memory again after seconds, whatever was dropped before."""
JOIN_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all feeds of a campaign have in common."""

    device: str
    data: str | None
    generated: int
    """Photos that are generated where there is no data."""
    cold: bool
    samples: int = 12_288
    """Of an epoch of the part `reuse`."""

    @property
    def root(self) -> Path:
        return photo_root(self.data, self.generated)


class Lane(NamedTuple):
    """What the lane has done so far; differences of two are what it did between them."""

    samples: int
    packed: int
    """Made from their files."""
    finished: int
    """That workers had decoded."""
    resident: int
    """That were kept on the device."""
    by_cpu: int
    """That the CPU had to make after all."""
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    batches: Iterator[Any]
    loader: Any = None
    ends: ExitStack = field(default_factory=ExitStack)
    """What ends after the loader."""

    def lane(self) -> Lane | None:
        """None where there is no lane, or the loader does not say."""
        if self.loader is None or not hasattr(self.loader, "stats"):
            return None
        gpu = self.loader.stats().get("gpu")
        if not isinstance(gpu, dict) or "samples" not in gpu or "packed" not in gpu:
            return None
        counts = [int(gpu.get(name, 0)) for name in Lane._fields[:-1]]
        return Lane(*counts, gpu.get("share"))

    @property
    def is_choosing(self) -> bool:
        """Whether the loader still compares ways to share the device."""
        gpu = self.loader.stats().get("gpu") if hasattr(self.loader, "stats") else None
        return isinstance(gpu, dict) and bool(gpu.get("trying"))

    def facts(self) -> dict[str, Any]:
        """The lane's mode and the workers at work, if the loader says so."""
        if not hasattr(self.loader, "stats"):
            return {}
        stats = self.loader.stats()
        mode = (stats.get("gpu") or {}).get("mode", "off")
        return {"mode": mode, "workers_at_end": len(stats.get("worker_pids") or ())}


Maker = Callable[[Job, Subject, Ground], Feed]


@contextmanager
def feeding(job: Job, subject: Subject, ground: Ground, make: Maker | None = None) -> Iterator[Feed]:
    """A feed, closed at the end. `make` stands in for `ours`."""
    make = make or ours
    if ground.cold and subject.kind != "limit":
        drop_from_memory(photo_files(ground.root))
    makers: dict[str, Callable[[], Feed]] = {
        "limit": lambda: Feed(batches=resident(job.batch, ground.device, job.model)),
        "torch": lambda: torchs(job, ground),
        "dali": lambda: dalis(job, subject, ground),
        "timm": lambda: Feed(batches=timms(job, ground.root, ground.device)),
        "gpu_ops": lambda: Feed(batches=on_the_gpu(job, photo_files(ground.root), ground.device)),
        "spdl": lambda: Feed(batches=Spdl(job, photo_files(ground.root), ground.device, subject.tuned)),
        "ours": lambda: make(job, subject, ground),
    }
    before = {child.pid for child in multiprocessing.active_children()}
    feed = makers[subject.kind]()
    try:
        yield feed
    finally:
        close(feed)
        ends = feed.ends
        del feed
        makers.clear()
        gc.collect()
        for child in multiprocessing.active_children():
            if child.pid not in before:
                child.join(JOIN_S)
        ends.close()


def close(feed: Feed) -> None:
    for name in ("close", "_shutdown_workers"):
        if hasattr(feed.batches, name):
            getattr(feed.batches, name)()
            return


def resident(size: int, device: str, model: str = "") -> Iterator[Any]:
    shape = (1, N_MELS, LONGEST_S * RATE // HOP + 1) if model == "sound" else (3, SIDE, SIDE)
    images = torch.randn(size, *shape, device=device, dtype=torch.bfloat16)
    batch = images.to(memory_format=torch.channels_last), torch.randint(CLASSES, (size,), device=device)
    while True:
        yield batch


# ---- ours


def gpu_prep(subject: Subject, device: str) -> Any:
    """As the loader takes it. Without a GPU there is no lane, and everything else is tried all the same."""
    if device == "cpu":
        return "off"
    if isinstance(subject.prep, str):
        return subject.prep
    import penstock

    return penstock.GpuPrep(**subject.prep)


def ours(job: Job, subject: Subject, ground: Ground) -> Feed:
    if job.workload == AUDIO:
        loader = sound_loader(job, ground)
    elif subject.adopted:
        loader = adopting_loader(job, subject, ground)
    else:
        loader = our_loader(job, subject, ground, our_dataset(ground.root, job.workload))
    ends = ExitStack()
    if subject.remote:
        loader._remote = ends.enter_context(elsewhere(subject))
    return Feed(batches=iter(loader), loader=loader, ends=ends)


@contextmanager
def elsewhere(subject: Subject) -> Iterator[Any]:
    """Remote workers as on other machines: each has a core of its own, and everything else the cores that are left."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    from remote_here import remote_workers

    cores = sorted(os.sched_getaffinity(0))
    here = cores[: max(1, len(cores) - subject.remote)]
    with remote_workers(subject.remote, plan=subject.plan) as (side, ferry, servers):
        for number, server in enumerate(servers):
            pin_all(server.process.pid, {cores[-1 - number % len(cores)]})
        for pid in (os.getpid(), ferry.pid):
            pin_all(pid, set(here))
        try:
            yield side
        finally:
            pin_all(os.getpid(), set(cores))


def pin_all(pid: int, cores: set[int]) -> None:
    """Keep a process, all of its threads, to these cores."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def adopting_loader(job: Job, subject: Subject, ground: Ground) -> Any:
    """A user's dataset and keywords."""
    import penstock

    mode = {} if subject.prep == "auto" else {"gpu_prep": gpu_prep(subject, ground.device)}
    return penstock.DataLoader(
        torchvision_v2_dataset(ground.root, job.workload),
        batch_size=job.batch,
        shuffle=True,
        num_workers=job.workers or "auto",
        drop_last=True,
        device=ground.device,
        **mode,
    )


def sound_loader(job: Job, ground: Ground) -> Any:
    """Of recordings: there is no lane for them."""
    from _reuse_workloads import dataset_of, root_of

    import penstock

    return penstock.DataLoader(
        dataset_of(AUDIO, root_of(AUDIO, None, 0), REPEATED),
        batch_size=job.batch,
        shuffle=True,
        num_workers=job.workers,
        drop_last=True,
        device=ground.device,
        seed=job.repeat,
    )


def our_loader(job: Job, subject: Subject, ground: Ground, dataset: Any, **more: Any) -> Any:
    import penstock

    return penstock.DataLoader(
        dataset,
        batch_size=job.batch,
        shuffle=True,
        num_workers="auto" if subject.auto_workers else job.workers,
        drop_last=True,
        device=ground.device,
        dtype=torch.bfloat16,
        memory_format=torch.channels_last,
        gpu_prep=gpu_prep(subject, ground.device),
        seed=job.repeat,
        **more,
    )


# ---- others


def torchs(job: Job, ground: Ground) -> Feed:
    from torch.utils.data import DataLoader

    loader = DataLoader(
        torchvision_dataset(ground.root, job.workload),
        batch_size=job.batch,
        shuffle=True,
        num_workers=job.workers,
        drop_last=True,
        pin_memory=ground.device != "cpu",
    )
    return Feed(batches=iter(loader))


def dalis(job: Job, subject: Subject, ground: Ground) -> Feed:
    from _gpu_dali import Dali

    return Feed(batches=Dali(job, photo_files(ground.root), ground.device, subject.tuned))


# ---- disk


def drop_from_memory(files: list[str]) -> int:
    """The page cache forgets the files; their bytes."""
    total = 0
    for name in files:
        handle = os.open(name, os.O_RDONLY)
        try:
            total += os.fstat(handle).st_size
            os.fsync(handle)  # what is not on the disk yet cannot be forgotten
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
    return total
