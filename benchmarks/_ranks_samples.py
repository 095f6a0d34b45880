"""What the ranks of `scripts/bench ranks` prepare: samples that burn or sleep for a set time, or real photos.

With a world of w, rank r gets the indices r, r + w, ...
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _workloads import burn
from torch.utils.data import Dataset

DEAR = 3.0
"""The samples of rank 0 are as many times as dear as others, where one rank is dear."""
SPREAD = 0.8
"""Of the logarithm of random costs: RandAugment's ops differ by more than ten times, a chain of two and a crop by less."""
PHOTOS = ("W2", "W3", "pillow")
DRAWS = 5
"""Times that a photo is prepared to know its cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A job, as the benchmark tells its ranks."""

    subject: str
    samples: str
    """`burn` a core, `sleep`, or photos: `W2` (crop, flip, normalise), `W3` (RandAugment on the whole photo before that), or `pillow`: W3 by torchvision's
    ops of Pillow, which our loader takes as they are."""
    costs: str
    """`dear`: the samples of rank 0 are three times as dear as others; `spread`: the same work, as much for each rank; `random`: by chance; `equal`."""
    workers: int
    batch: int
    sample_ms: float
    """Mean of those that burn or sleep."""
    train_ms: float
    steps: int
    warm: int
    """Steps before the measured ones."""
    ahead: int
    """Batches asked for ahead; 0: as many as by default."""
    lane: str
    """Mode of the GPU lane."""
    photos: str
    """File with the `Photos`; "": none."""

    @property
    def of_photos(self) -> bool:
        return self.samples in PHOTOS

    def length(self, world: int) -> int:
        return (self.steps + self.warm) * self.batch * world


class Costly(Dataset[torch.Tensor]):
    """Samples whose cost follows from their index."""

    def __init__(self, spec: Spec, world: int) -> None:
        self.spec, self.world = spec, world

    def __len__(self) -> int:
        return self.spec.length(self.world)

    def cost(self, index: int) -> float:
        """In seconds."""
        mean_s = self.spec.sample_ms / 1000
        if self.spec.costs == "dear":
            return mean_s * (DEAR if index % self.world == 0 else 1) * self.world / (self.world + DEAR - 1)
        if self.spec.costs == "random":
            drawn = torch.randn(1, generator=torch.Generator().manual_seed(index)).item()
            return mean_s * math.exp(SPREAD * drawn - SPREAD**2 / 2)
        return mean_s

    def __getitem__(self, index: int) -> torch.Tensor:
        (time.sleep if self.spec.samples == "sleep" else burn)(self.cost(index))
        return torch.tensor(index)


# ---- photos


class Pillow(Dataset[torch.Tensor]):
    """A dataset of a user's own: no loader knows what is in it."""

    def __init__(self, root: str) -> None:
        from _gpu_chains import torchvision_dataset

        self.inner = torchvision_dataset(Path(root), "W3")

    def __len__(self) -> int:
        return len(self.inner.samples)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.inner[index][0]


class Photos(NamedTuple):
    """Files by what it costs to prepare them."""

    root: str
    files: list[str]
    dear: list[str]
    """The dearest quarter."""
    cheap: list[str]
    """As many of the cheapest as make the dear ones three times as dear."""
    costs_s: list[float]
    """CPU time of each sample that was prepared to find out."""

    def paths(self, spec: Spec, world: int) -> list[str]:
        """Return the photo of each index."""
        count = spec.length(world)
        if spec.costs not in ("dear", "spread"):
            return list(islice(cycle(self.files), count))
        dear, cheap = cycle(self.dear), cycle(self.cheap)
        turns = 1 if spec.costs == "spread" else 0  # spread: each rank has its turn
        return [
            next(dear if (index % world + turns * (index // world)) % world == 0 else cheap)
            for index in range(count)
        ]


def timed_photos(root: Path, workload: str, world: int, report: Callable[[str], None]) -> Photos:
    """Prepare all photos a few times with our chain, one after another."""
    dataset = plain(root, workload)
    files = sorted(str(path) for path in (root / "photos").iterdir())
    give(dataset, files)
    report(f"the cost of {len(dataset)} photos")
    times: list[list[float]] = [[] for _ in range(len(dataset))]
    torch.set_num_threads(1)
    for _ in range(DRAWS + 1):  # the first pass warms caches and compiles
        for index, row in enumerate(times):
            began_s = time.thread_time()
            dataset[index]
            row.append(time.thread_time() - began_s)
    ranked = sorted(zip((statistics.median(row[1:]) for row in times), files, strict=True))
    quarter = max(1, len(ranked) // world)
    dear = ranked[-quarter:]
    few = range(1, len(ranked) - quarter + 1)
    wanted = statistics.mean(cost for cost, _ in dear) / DEAR
    many = min(few, key=lambda count: abs(statistics.mean(cost for cost, _ in ranked[:count]) - wanted))
    drawn = [cost for row in times for cost in row[1:]]
    names = [[path for _, path in some] for some in (dear, ranked[:many])]
    return Photos(str(root), files, *names, drawn)


def dataset_of(spec: Spec, world: int) -> Any:
    """Return the samples for our loader, or for torch's."""
    if not spec.of_photos:
        return Costly(spec, world)
    photos = Photos(*json.loads(Path(spec.photos).read_text("utf-8")))
    dataset = plain(Path(photos.root), "pillow" if spec.subject == "torch" else spec.samples)
    give(dataset, photos.paths(spec, world))
    return dataset


def plain(root: Path, workload: str) -> Any:
    from _gpu_chains import our_chain

    import penstock

    return Pillow(str(root)) if workload == "pillow" else penstock.ImageFolder(str(root), our_chain(workload))


def give(dataset: Any, paths: list[str]) -> None:
    """Let a dataset have these samples."""
    inner = dataset.inner if isinstance(dataset, Pillow) else dataset
    inner.samples = [(path, 0) for path in paths]
    if inner is dataset:
        dataset.length = len(paths)
