"""How many samples a loader with `reuse=` keeps. The order of a shuffled epoch depends on it, so ranks must have the same number, or samples would
come twice and others not at all.

Rule 1: ranks of a process group agree when their loaders are made: the fewest that any of them has room for.
Rule 2: without a group the number depends on the data and on what was asked for, and on nothing that a rank happens to find. A sample whose size
        cannot be read counts as the mean of the others; where that could make a difference, it is said.
Rule 3: ranks that are in a group by their first epoch, and do not have the same number, do not begin it.
"""

from __future__ import annotations

import logging
import math
import statistics
from typing import NamedTuple

from penstock.config import Reuse
from penstock.engine.reuse_on_disk import ranks_are_here
from penstock.engine.shard import gathered
from penstock.errors import ConfigError
from penstock.pipeline.audio import AudioFolder
from penstock.pipeline.chain import size_of
from penstock.pipeline.decode import Encoded
from penstock.pipeline.staged import StagedDataset
from penstock.store.disk import SMALL_BYTES
from penstock.store.kept_memory import HEAD
from penstock.transforms.steps import program_size

log = logging.getLogger("penstock")
LOOKED_AT = 64
"""Samples whose sizes tell how large those that are kept will be."""
LISTENED_TO = 16
"""Of recordings, which must be decoded for it."""
FILLED = 0.85
"""Share of the memory, or of the disk, that entries are expected to fill: the rest is what chunks leave over."""
FILLED_ON_DISK = 0.65
"""Of small ones on a disk: some of it is dead until it is worth copying the rest."""
UNKNOWN = -1
"""What a rank says that could read no sample."""


class Sizes(NamedTuple):
    """Of some samples, as they would be kept."""

    known: list[int]
    unread: list[str]
    """Why each of the others could not be read."""

    @property
    def mean(self) -> int:
        return math.ceil(statistics.fmean(self.known))


def kept_of(wanted: Reuse, dataset: StagedDataset | AudioFolder, split: int, *, shared: bool) -> int:
    """How many samples are kept; `shared`: this loader is one of several ranks'. Those of a process group must all be here."""
    sizes = sizes_of(dataset, split)
    kept = fitting(wanted, len(dataset), sizes.mean) if sizes.known else UNKNOWN
    if ranks_are_here(shared=shared):
        kept = min((theirs for (theirs,) in gathered([kept]) if theirs != UNKNOWN), default=UNKNOWN)
    elif shared and sizes.known and sizes.unread and kept < len(dataset):
        say_unread(sizes, kept)
    if kept == UNKNOWN and len(dataset):
        log.warning(
            "reuse: of %d samples that were looked at, none could be read (%s), so that it is not known how large they are: nothing is kept. "
            "Make them readable before the loader is made",
            len(sizes.unread),
            sizes.unread[0],
        )
    return max(0, kept)


def check_agreed(kept: int) -> None:
    """ConfigError, on all ranks of a group, where they do not keep as many: their loaders were made before there was a group, or resumed from
    states of different jobs."""
    theirs = [number for (number,) in gathered([kept])]
    if len(set(theirs)) > 1:
        raise ConfigError(
            f"ranks would keep {', '.join(f'{number:,}' for number in theirs)} samples (reuse), and not share one order: make loaders when "
            f"torch.distributed has its process group, with the same max_bytes on all ranks, and resume all from states of one job"
        )


def say_unread(sizes: Sizes, kept: int) -> None:
    log.warning(
        "reuse: %d of %d samples that were looked at could not be read (%s), so that %s are kept by the sizes of the others. A rank that could read "
        "them may keep another number, and then some samples come twice and some not at all: make them readable, or make loaders when "
        "torch.distributed has a process group, so that ranks agree",
        len(sizes.unread),
        len(sizes.known) + len(sizes.unread),
        sizes.unread[0],
        f"{kept:,}",
    )


def fitting(wanted: Reuse, length: int, mean: int) -> int:
    """How many of so many samples there is room for."""
    filled = FILLED_ON_DISK if wanted.store == "disk" and mean < SMALL_BYTES else FILLED
    return min(length, int(filled * wanted.bytes) // mean)


def sizes_of(dataset: StagedDataset | AudioFolder, split: int) -> Sizes:
    """Of samples that are spread over all: the same ones wherever the same data is."""
    most = LISTENED_TO if isinstance(dataset, AudioFolder) else LOOKED_AT
    count, sizes = min(most, len(dataset)), Sizes([], [])
    for at in range(count):
        index = at * len(dataset) // count
        try:
            sizes.known.append(partial_bytes(dataset, index, split))
        except Exception as exc:  # noqa: BLE001 - whoever prepares it will raise it
            sizes.unread.append(f"sample {index}: {exc}")
    return sizes


def partial_bytes(dataset: StagedDataset | AudioFolder, index: int, split: int) -> int:
    """Of a sample in the store, about; a recording is prepared so far to see."""
    if isinstance(dataset, AudioFolder):
        return HEAD + int(dataset.chain.through(dataset.wave(index), 0, 0, split).nbytes)
    image = dataset.image(dataset.read_header_bytes(index))
    height, width = program_size(dataset.chain.draw(0, size_of(image), None, 0, split), size_of(image))
    channels = 3 if isinstance(image, Encoded) else image.shape[2]
    return HEAD + height * width * channels
