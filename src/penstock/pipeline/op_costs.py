"""What the ops of a chain cost, and what each way to cut it in two would: measured on samples of the dataset.

Rule 1: what comes before op i is one piece of work: bytes to the image after i ops, as a chain does it. Of an image of which the
        first ops leave a part, only that part may have to be decoded, so that more ops can take less time.
Rule 2: what follows is measured by itself, on the image as it would be kept.
Rule 3: each is the median of some rounds, which take turns over the samples' cuts, and then the mean over the samples: outliers of the machine
        are left out, what differs between draws is not. Time is CPU time of this thread.
Rule 4: draws are keyed by the sample's number; the program's own generators are put back.
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
clock = time.thread_time  # a process that waits for a core is not working


@dataclass(frozen=True, slots=True)
class CutCosts:
    """Seconds per sample for each cut of a chain, from before its first op to behind its last."""

    partial_s: tuple[float, ...]
    """From the file to what would be kept."""
    final_s: tuple[float, ...]
    """From there to the sample."""
    copy_s: tuple[float, ...]
    """To copy what would be kept: as good as to read it from memory."""
    kept_bytes: tuple[float, ...]
    size: Size
    """Median height and width of the images; of recordings, channels and samples."""
    samples: int

    @property
    def whole_s(self) -> float:
        return self.partial_s[-1] + self.final_s[-1]

    def by_split(self) -> Costs:
        return Costs(whole_s=self.whole_s, partial_s=self.partial_s, final_s=self.final_s, read_s=self.copy_s)

    def anew_costs(self) -> list[float]:
        """What each op adds to what follows it where it is done anew, on an image that is decoded; then what follows all ops."""
        return [*(max(0.0, a - b) for a, b in pairwise(self.final_s)), self.final_s[-1]]

    def op_costs(self) -> list[float]:
        """What comes before the first op, then each op: what it adds to all that comes before it, never less than nothing."""
        return [self.partial_s[0], *(max(0.0, b - a) for a, b in pairwise(self.partial_s))]


def op_costs(dataset: StagedDataset | AudioFolder, samples: int = SAMPLES) -> list[float]:
    """Seconds of reading and decoding, then of each op of the dataset's chain."""
    return cut_costs(dataset, samples).op_costs()


def cut_costs(
    dataset: StagedDataset | AudioFolder,
    samples: int = SAMPLES,
    on_progress: Progress = lambda _done, _of: None,
) -> CutCosts:
    """Of every cut, over so many samples from all over the dataset."""
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
                    cuts_of(dataset, index)  # not counted: it loads libraries
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
    """One sample, cut in one place."""

    partial_s: float
    final_s: float
    copy_s: float
    kept_bytes: float


def cuts_of(dataset: StagedDataset | AudioFolder, index: int) -> tuple[list[Cut], Size]:
    """Every cut of one sample."""
    seed, ends = sample_seed(0, 0, index, index), range(body(dataset.chain) + 1)
    rounds = [[cut_once(dataset, index, seed, end) for end in ends] for _ in range(ROUNDS)]
    cuts = [
        Cut(*map(statistics.median, zip(*same, strict=True)))  # of each field
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
    read = np.array(kept, copy=True, order="C")  # a function of the user's may change it in place
    copied = clock()
    if isinstance(dataset, AudioFolder):
        np.ascontiguousarray(dataset.chain.through(read, seed, end))
    else:
        finish(dataset.chain, read, seed, end)
    return Cut(between - began, clock() - copied, copied - between, float(kept.nbytes))


def body(chain: Chain | AudioChain) -> int:
    """Ops whose results could be kept: a last transform that is not ours may make anything of pixels."""
    return len(chain.ops) - (isinstance(chain, Chain) and chain.ends_elsewhere)


def finish(chain: Chain, image: Any, seed: int, first: int) -> Any:
    """The sample, of an image that the ops before `first` are done with; the draws are those that the whole chain has."""
    for start, end in chain.stretches:
        at, stop = max(start, first), min(end, body(chain))
        if at < stop:
            image = execute(chain.draw(seed, size_of(image), None, at, stop), image)
    if chain.ends_elsewhere:
        return chain.ended(image, seed)
    return chain.run_views(image, seed) if chain.views else chain.tail.finish(image)


# ---- for the choice of a split


CLOSING = "what follows the ops is done anew each time"


def parts_of(chain: Chain | AudioChain, costs: CutCosts) -> list[ChainOp]:
    """The ops, then all that follows them, as a split is chosen by."""
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
    """Why what an op makes may not be kept; nothing where it may."""
    if isinstance(op, PerBatch):
        return "its draw is that of a batch, which is another one in each epoch"
    if calls(op) or isinstance(op, Function):
        return "a function of yours, which may do something else each time"
    return "" if is_ours(op) else "not an op of ours, so it may do something else each time"
