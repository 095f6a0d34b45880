"""How many samples a loader with `reuse=` stores, and in how much memory.

The order of a shuffled epoch depends on that number. Ranks must agree on it, or samples would repeat and others be missing.

Rule 1: ranks of a process group agree when their loaders are made: the fewest any of them has room for.
Rule 2: without a group the number depends only on the data and the request, not on the state of a rank's machine. A sample whose size cannot be
        read counts as the mean of the others; if that could matter, a warning says so.
Rule 3: leave memory to others: samples take at most half of what the machine or container has free when the loader is made.
Rule 4: ranks that are in a group by their first epoch and disagree on the number do not begin it.
"""

from __future__ import annotations

import logging
import math
import statistics
from typing import NamedTuple

from penstock.config import Reuse
from penstock.epochs.shard import gathered
from penstock.errors import ConfigError
from penstock.measure.host import memory_left
from penstock.measure.launch import local_world
from penstock.pipeline.audio import AudioFolder
from penstock.pipeline.chain import size_of
from penstock.pipeline.decode import Encoded
from penstock.pipeline.staged import StagedDataset
from penstock.reuse.on_disk import ranks_are_here
from penstock.reuse.stores.chunks import layout_of, room_beside
from penstock.reuse.stores.disk import SMALL_BYTES
from penstock.reuse.stores.memory import HEAD
from penstock.transforms.steps import program_size

log = logging.getLogger("penstock")
LOOKED_AT = 64
"""Samples whose sizes estimate the size of an entry."""
LISTENED_TO = 16
"""The same for recordings, which must be decoded for it."""
FILLED = 0.85
"""Share of the memory or disk that entries are expected to fill; chunks leave the rest unused."""
FILLED_ON_DISK = 0.65
"""The same for small entries on disk: some space is dead until compaction pays."""
UNKNOWN = -1
"""Reported by a rank that could read no sample."""


class Sizes(NamedTuple):
    """Sizes of some samples as stored."""

    known: list[int]
    unread: list[str]
    """Why each of the others could not be read."""


class Room(NamedTuple):
    """Capacity for stored samples."""

    kept: int
    """How many samples; some may turn out to be too large."""
    entry_bytes: int
    """Estimated size of an entry."""
    max_bytes: int
    """Limit for all entries."""
    too_large: float
    """Share of samples that are larger than a chunk, and so prepared each time."""


def room_of(wanted: Reuse, dataset: StagedDataset | AudioFolder, split: int, *, shared: bool) -> Room:
    """Return a loader's capacity. `shared`: it is one of several ranks; all ranks of a process group must call this."""
    sizes, length, several = sizes_of(dataset, split), len(dataset), ranks_are_here(shared=shared)
    asked = estimated(wanted, wanted.bytes, length, sizes.known)
    spare = spared(wanted, 1 if several else local_world())
    room = estimated(wanted, spare, length, sizes.known)
    if room.kept < asked.kept:
        say_less(wanted, room, asked, length)
    if several:
        room = agreed(room)
    elif shared:
        room = asked._replace(max_bytes=spare)
        if sizes.known and sizes.unread and room.kept < length:
            say_unread(sizes, room.kept)
    if room.kept == UNKNOWN and length:
        log.warning(
            "reuse: of %d samples that were looked at, none could be read (%s), so that it is not known how large they are: nothing is kept. "
            "Make them readable before the loader is made",
            len(sizes.unread),
            sizes.unread[0],
        )
    elif not asked.kept and length:
        say_none_fits(wanted, length, room.entry_bytes)
    return room._replace(kept=max(0, room.kept))


def spared(wanted: Reuse, stores: int) -> int:
    """Return the bytes each of `stores` stores may take here. Rounded down, so that most runs on a machine agree."""
    if wanted.store != "memory":
        return wanted.bytes
    half = memory_left() // 2 // stores
    unit = 1 << max(0, half.bit_length() - 3)
    return min(wanted.bytes, half // unit * unit)


def agreed(room: Room) -> Room:
    """Return the capacity that all ranks have."""
    known = [numbers for numbers in gathered(room[:3]) if numbers[0] != UNKNOWN]
    if not known:
        return room
    kept, sizes, most = zip(*known, strict=True)
    return room._replace(kept=min(kept), entry_bytes=max(sizes), max_bytes=min(most))


def check_agreed(kept: int) -> None:
    """Raise ConfigError on all ranks of a group if their numbers differ: their loaders were made before the group, or resumed from different jobs."""
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


def say_less(wanted: Reuse, room: Room, asked: Room, length: int) -> None:
    log.warning(
        "reuse: of the %s bytes of max_bytes samples may take %s, which is about half of what this machine or container has left: %s of %s samples are "
        "kept there, not %s. Give that as max_bytes, so that all runs keep as many, or more memory, or store='disk'",
        *(f"{each:,}" for each in (wanted.bytes, room.max_bytes, room.kept, length, asked.kept)),
    )


def say_none_fits(wanted: Reuse, length: int, entry_bytes: int) -> None:
    beside = wanted.bytes - room_beside(length, wanted.bytes) if wanted.store == "memory" else 0
    log.warning(
        "reuse: nothing is kept: max_bytes=%r has no room for a sample of %s bytes%s. Give a larger max_bytes, or split behind an op that makes "
        "samples smaller",
        wanted.max_bytes,
        f"{entry_bytes:,}",
        f" beside an index of {beside:,}" if beside else "",
    )


def estimated(wanted: Reuse, max_bytes: int, length: int, sizes: list[int]) -> Room:
    """Estimate the capacity from sample `sizes`. Samples too large for a chunk take nothing."""
    if not sizes:
        return Room(UNKNOWN, 0, max_bytes, 0.0)
    mean = math.ceil(statistics.fmean(sizes))
    if wanted.store == "disk":
        filled = FILLED_ON_DISK if mean < SMALL_BYTES else FILLED
        return Room(min(length, int(filled * max_bytes) // mean), mean, max_bytes, 0.0)
    layout = layout_of(length, max_bytes, mean, in_file=wanted.store == "memory")
    fit = [size for size in sizes if size <= layout.chunk_bytes]
    if not layout.chunks or not fit:
        return Room(0, mean, max_bytes, 0.0)
    room = FILLED * layout.chunks * layout.chunk_bytes
    kept = min(length, int(room * len(sizes) / sum(fit)))
    return Room(kept, mean, max_bytes, 1 - len(fit) / len(sizes))


def sizes_of(dataset: StagedDataset | AudioFolder, split: int) -> Sizes:
    """Measure samples spread over the dataset: the same ones wherever the data is the same."""
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
    """Estimate the stored size of a sample; a recording is prepared that far to measure it."""
    if isinstance(dataset, AudioFolder):
        return HEAD + int(dataset.chain.through(dataset.wave(index), 0, 0, split).nbytes)
    image = dataset.image(dataset.read_header_bytes(index))
    height, width = program_size(dataset.chain.draw(0, size_of(image), None, 0, split), size_of(image))
    channels = 3 if isinstance(image, Encoded) else image.shape[2]
    return HEAD + height * width * channels
