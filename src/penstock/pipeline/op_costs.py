"""Measure the cost of each op of a chain, and of each cut of the chain in two, on samples of the dataset.

Rule 1: the part before a cut runs as one piece, from bytes to the image after i ops. If the first ops crop, only the crop may need
        decoding, so more ops can take less time.
Rule 2: the part after a cut is measured separately, on the image as it would be cached.
Rule 3: each cost is a median over rounds (rounds alternate over a sample's cuts), then a mean over samples: this drops machine noise but
        keeps differences between draws. Time is this thread's CPU time.
Rule 4: draws are keyed by the sample's number; global generators are restored.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from penstock.dataset.seeding import generators_kept, seed_all
from penstock.errors import ConfigError
from penstock.pipeline.audio import AudioChain, AudioFolder, BadAudio
from penstock.pipeline.chain import Chain, calls, size_of
from penstock.pipeline.header import BadImage
from penstock.pipeline.staged import StagedDataset, is_ours
from penstock.plan.seeds import sample_seed
from penstock.policy.split import ChainOp, Costs
from penstock.transforms.audio import Function
from penstock.transforms.cpu import execute
from penstock.transforms.outcomes import kinds, outcomes, outcomes_in_row, size_behind
from penstock.transforms.per_batch import PerBatch
from penstock.transforms.steps import Size

SAMPLES = 64
ROUNDS = 3
Progress = Callable[[int, int], None]
"""Called with (done, of)."""
clock = time.thread_time  # waiting for a core is not work


@dataclass(frozen=True, slots=True)
class CutCosts:
    """Seconds per sample for each cut of a chain, from before its first op to after its last."""

    partial_s: tuple[float, ...]
    """From the file to the cached image."""
    final_s: tuple[float, ...]
    """From the cached image to the sample."""
    copy_s: tuple[float, ...]
    """To copy the cached image: about the cost of reading it from memory."""
    kept_bytes: tuple[float, ...]
    size: Size
    """Median height and width of the images; for recordings, channels and samples."""
    samples: int

    @property
    def whole_s(self) -> float:
        return self.partial_s[-1] + self.final_s[-1]

    def by_split(self) -> Costs:
        return Costs(whole_s=self.whole_s, partial_s=self.partial_s, final_s=self.final_s, read_s=self.copy_s)

    def anew_costs(self) -> list[float]:
        """Return what each op costs when run on a decoded image, then the cost of everything after the ops."""
        return [*(max(0.0, a - b) for a, b in pairwise(self.final_s)), self.final_s[-1]]

    def op_costs(self) -> list[float]:
        """Return the cost before the first op, then what each op adds, at least 0."""
        return [self.partial_s[0], *(max(0.0, b - a) for a, b in pairwise(self.partial_s))]


def op_costs(dataset: StagedDataset | AudioFolder, samples: int = SAMPLES) -> list[float]:
    """Return the seconds for reading and decoding, then for each op of the chain."""
    return cut_costs(dataset, samples).op_costs()


def cut_costs(
    dataset: StagedDataset | AudioFolder,
    samples: int = SAMPLES,
    on_progress: Progress = lambda _done, _of: None,
) -> CutCosts:
    """Measure every cut, on `samples` samples spread over the dataset."""
    count = min(samples, len(dataset))
    if count < 1:
        raise ConfigError("there is no sample to measure: the dataset is empty, or none was asked for")
    looked_at = [at * len(dataset) // count for at in range(count)]
    found: list[list[Cut]] = []
    sizes: list[Size] = []
    broken = ""
    with generators_kept():
        for done, index in enumerate(looked_at):
            try:
                if not found:
                    cuts_of(dataset, index)  # warm-up, not counted: it loads libraries
                cuts, size = cuts_of(dataset, index)
            except (BadImage, BadAudio) as exc:
                broken = f"{dataset.name(index)}: {exc}"
            else:
                found.append(cuts)
                sizes.append(size)
            on_progress(done + 1, count)
    if not found:
        raise ConfigError(f"none of {count} samples can be decoded; the last was {broken}")
    by_cut = list(zip(*found, strict=True))

    def mean(name: str) -> tuple[float, ...]:
        return tuple(statistics.fmean(getattr(cut, name) for cut in cuts) for cuts in by_cut)

    return CutCosts(
        partial_s=mean("partial_s"),
        final_s=mean("final_s"),
        copy_s=mean("copy_s"),
        kept_bytes=mean("kept_bytes"),
        size=(round(statistics.median(s[0] for s in sizes)), round(statistics.median(s[1] for s in sizes))),
        samples=len(found),
    )


class Cut(NamedTuple):
    partial_s: float
    final_s: float
    copy_s: float
    kept_bytes: float


def cuts_of(dataset: StagedDataset | AudioFolder, index: int) -> tuple[list[Cut], Size]:
    seed, ends = sample_seed(0, 0, index, index), range(body(dataset.chain) + 1)
    rounds = [[cut_once(dataset, index, seed, end) for end in ends] for _ in range(ROUNDS)]
    cuts = [
        Cut(*map(statistics.median, zip(*same, strict=True)))  # per field
        for same in zip(*rounds, strict=True)
    ]
    if isinstance(dataset, AudioFolder):
        channels, length = dataset.wave(index).shape
        return cuts, (channels, length)
    return cuts, size_of(dataset.image(dataset.read(index)[0]))


def cut_once(dataset: StagedDataset | AudioFolder, index: int, seed: int, end: int) -> Cut:
    seed_all(seed)
    began = clock()
    if isinstance(dataset, AudioFolder):
        kept = dataset.chain.through(dataset.wave(index), seed, 0, end)
    else:
        kept = dataset.chain.pixels(dataset.image(dataset.read(index)[0]), seed, end=end)
    between = clock()
    read = np.array(kept, copy=True, order="C")  # a user function may change it in place
    copied = clock()
    if isinstance(dataset, AudioFolder):
        np.ascontiguousarray(dataset.chain.through(read, seed, end))
    else:
        finish(dataset.chain, read, seed, end)
    return Cut(between - began, clock() - copied, copied - between, float(kept.nbytes))


def body(chain: Chain | AudioChain) -> int:
    """Count the ops whose results can be cached. A foreign last transform may return anything."""
    return len(chain.ops) - (isinstance(chain, Chain) and chain.ends_elsewhere)


def finish(chain: Chain, image: Any, seed: int, first: int) -> Any:
    """Run the ops from `first` on and finish the sample, with the draws of the whole chain."""
    for start, end in chain.stretches:
        at, stop = max(start, first), min(end, body(chain))
        if at < stop:
            image = execute(chain.draw(seed, size_of(image), None, at, stop), image)
    if chain.ends_elsewhere:
        return chain.ended(image, seed)
    return chain.run_views(image, seed) if chain.views else chain.tail.finish(image)


# ---- choosing a split


CLOSING = "what follows the ops is done anew each time"


def parts_of(chain: Chain | AudioChain, costs: CutCosts) -> list[ChainOp]:
    """Return the ops, then everything after them as one, for choosing a split."""
    *each, after_s = costs.anew_costs()
    if isinstance(chain, AudioChain):
        sound = [
            ChainOp(name=op.name, outcomes=outcomes(op), cost_s=cost_s, anew=why_anew(op))
            for op, cost_s in zip(chain.ops, each, strict=True)
        ]
        return [*sound, ChainOp(name="to tensor", outcomes=1, cost_s=after_s, anew=CLOSING)]
    ops = chain.ops[: body(chain)]
    counts = outcomes_in_row(ops, costs.size)
    parts = [
        ChainOp(name=op.name, outcomes=count, cost_s=cost_s, anew=why_anew(op), kinds=kinds(op))
        for op, count, cost_s in zip(ops, counts, each, strict=True)
    ]
    size = reduce(lambda size, op: size_behind(op, size), ops, costs.size)
    views = math.prod(math.prod(outcomes_in_row(view.ops, size)) for view in chain.views)
    name = f"{len(chain.views)} views" if chain.views else "to tensor"
    name = chain.ops[-1].name if chain.ends_elsewhere else name
    return [*parts, ChainOp(name=name, outcomes=views, cost_s=after_s, anew=CLOSING)]


def why_anew(op: Any) -> str:
    """Say why an op's result must not be cached; "" if it may."""
    if isinstance(op, PerBatch):
        return "its draw is that of a batch, which is another one in each epoch"
    if calls(op) or isinstance(op, Function):
        return "a function of yours, which may do something else each time"
    return "" if is_ours(op) else "not an op of ours, so it may do something else each time"
