"""The tiers of the byte cache beside reads from the page cache: scripts/bench cache_tiers [--samples N] [--out JSON]

All subjects hold the same bytes: sizes spread as those of photos, about 110 KB. A round reads every sample once with each subject, in tasks of 16 and in
one random order, the subjects rotating: only to have the bytes (*get*), to read each byte once (*max*, the largest), and to take their *crc32*.
Counted is the reader's CPU time, not that of the agent that tells it places. Ratios are taken inside a round.

*files*: a file each, by `WholeFiles`, as `ImageFolder` reads them: all other subjects are compared with it. *shard*: `pread` of one open file, the cheapest
read there is. *memory*: the memory tier of another process, as workers read it (`PlacedBytes`): a worker is told the places of a task's samples, then
reads each. *disk*: the disk tier, whose pages are cached too; it checks a checksum of its own beside.

The mark: *get memory* is at most 1.1 times *get files*.

The memory tier's allocator is measured apart, without bytes: full and under random replacement, how much of its memory is used, and the CPU time of a
reservation with its eviction.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from _machine import describe

from penstock.accel import crc32
from penstock.cache.disk import DiskTier
from penstock.cache.keys import content_key
from penstock.cache.memory import MemoryTier
from penstock.cache.space import FreeSpace, rounded
from penstock.sources.sources import ByteRange, WholeFiles
from penstock.wire.places import Landing, pack_places, split_places
from penstock.worker.placed import MemoryFile, PlacedBytes

ROOT = Path(__file__).resolve().parent.parent
TASK = 16
MEAN, SPREAD = 11.45, 0.55
"""Of the logarithm of a size: 110 KB on average."""
Use = Callable[[bytes | memoryview], object]
Read = Callable[[Sequence[int], Use], None]
USES: dict[str, Use] = {"get": len, "max": lambda data: np.frombuffer(data, np.uint8).max(), "crc32": crc32}


def size_of(sample: int) -> int:
    return min(1 << 20, max(2_000, int(random.Random(sample).lognormvariate(MEAN, SPREAD))))


def key(sample: int) -> bytes:
    return content_key("photos", [(f"photo {sample}", 0, None)])


def data_of(sample: int) -> bytes:
    return random.Random(sample).randbytes(size_of(sample))


class TierElsewhere:
    """The memory tier in a process of its own, read as a worker reads it."""

    def __init__(self, samples: int) -> None:
        told, tells = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            with os.fdopen(tells, "w") as pipe:
                json.dump(filled(samples), pipe)
            signal.pause()
        os.close(tells)
        with os.fdopen(told) as pipe:
            inode, fd, offsets = json.load(pipe)  # it has everything then
        self._memory = MemoryFile(inode, self.pid, fd)
        self._offsets = offsets
        self._told: dict[int, bytes] = {}
        """What the agent says before a task, by the task's first sample."""
        self._ranges: list[list[ByteRange]] = [[(f"photo {sample}", 0, None)] for sample in range(samples)]
        self._bytes = PlacedBytes(NotCached())

    def tell(self, order: Sequence[int]) -> None:
        """Do the agent's part for the tasks of a round."""
        for first in range(0, len(order), TASK):
            landings = [
                Landing(at, self._offsets[sample], (size_of(sample),))
                for at, sample in enumerate(order[first : first + TASK])
            ]
            self._told[order[first]] = pack_places(landings)

    def read(self, samples: Sequence[int], use: Use) -> None:
        landings = list(split_places(self._told[samples[0]]))
        self._bytes.place(self._memory, landings, lambda at: self._ranges[samples[at]])
        for sample in samples:
            use(self._bytes.read(*self._ranges[sample][0]))

    def close(self) -> None:
        self._bytes.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def filled(samples: int) -> tuple[int, int, list[int]]:
    """Fill a tier; return the inode and descriptor of its memory, and where each sample is."""
    tier = MemoryTier(2 * sum(map(size_of, range(samples))))
    for sample in range(samples):
        view = tier.reserve(key(sample), size_of(sample))
        assert view is not None
        view[:] = data_of(sample)
        tier.commit(key(sample))
    places = tier.lookup([key(sample) for sample in range(samples)], "the reader")
    fd = tier.open_for_reading()
    return os.fstat(fd).st_ino, fd, [place.offset for place in places if place is not None]


class NotCached(WholeFiles):
    """What is behind the memory tier here: nothing."""

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:  # noqa: ARG002 - as a source is called
        raise AssertionError(f"{name} is not cached")


def shard(folder: Path, samples: int, held: ExitStack) -> Read:
    offsets = [0]
    with (folder / "shard").open("wb") as file:
        for sample in range(samples):
            file.write(data_of(sample))
            offsets.append(offsets[-1] + size_of(sample))
    fd = os.open(folder / "shard", os.O_RDONLY)
    held.callback(os.close, fd)

    def read(some: Sequence[int], use: Use) -> None:
        for sample in some:
            use(os.pread(fd, offsets[sample + 1] - offsets[sample], offsets[sample]))

    return read


def files(folder: Path, samples: int) -> Read:
    for sample in range(samples):
        (folder / str(sample)).write_bytes(data_of(sample))

    source = WholeFiles()

    def read(some: Sequence[int], use: Use) -> None:
        for sample in some:
            use(source.read(f"{folder}/{sample}"))

    return read


def on_disk(folder: Path, samples: int, held: ExitStack) -> Read:
    tier = DiskTier(folder, entries=samples, max_bytes=4 * sum(map(size_of, range(samples))) + (64 << 20))
    held.callback(tier.close)
    refused = [sample for sample in range(samples) if not tier.put(key(sample), data_of(sample))]
    print(f"the disk tier refused {len(refused)} of {samples}")
    tier.flush()

    def read(some: Sequence[int], use: Use) -> None:
        for data in tier.get_many([key(sample) for sample in some]):
            use(b"" if data is None else data)

    return read


def measured(samples: int, rounds: int, report: Callable[[str], None]) -> dict[str, list[float]]:
    """CPU microseconds per sample, of each round."""
    with ExitStack() as held:
        memory = TierElsewhere(samples)
        held.callback(memory.close)
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        for name in ("files", "tier"):
            (folder / name).mkdir()
        subjects = {
            "shard": shard(folder, samples, held),
            "files": files(folder / "files", samples),
            "memory": memory.read,
            "disk": on_disk(folder / "tier", samples, held),
        }
        names = [(name, use) for name in subjects for use in USES]
        found: dict[str, list[float]] = {f"{use} {name}": [] for name, use in names}
        for turn in range(rounds + 1):
            order = random.Random(turn).sample(range(samples), samples)
            memory.tell(order)
            for name, use in names[turn % len(names) :] + names[: turn % len(names)]:
                before = time.process_time()
                for at in range(0, samples, TASK):
                    subjects[name](order[at : at + TASK], USES[use])
                spent_s = time.process_time() - before
                if turn:  # the first round warms everything up
                    found[f"{use} {name}"].append(1e6 * spent_s / samples)
            report(f"round {turn} of {rounds}")
    return found


def allocator(extents: int, times: int) -> dict[str, float]:
    """The memory in use by bytes when the space is full and entries are replaced at random, and the time that takes."""
    rng, space = random.Random(0), FreeSpace()
    space.grow(extents * 110_000)
    held: list[tuple[int, int]] = []
    refusals, sizes = 0, [size_of(number) for number in range(5_000)]
    shares: list[float] = []
    began, used = time.process_time(), 0
    for step in range(extents + times):
        size = rng.choice(sizes)
        start = space.take(rounded(size))
        while start is None:
            refusals += 1
            at = rng.randrange(len(held))
            held[at], held[-1] = held[-1], held[at]
            offset, old = held.pop()
            space.give(offset, rounded(old))
            used -= old
            start = space.take(rounded(size))
        held.append((start, size))
        used += size
        if step >= extents + times // 2:
            shares.append(used / space.end)
    spent_s = time.process_time() - began
    return {
        "extents": len(held),
        "used_share_mean": statistics.fmean(shares),
        "used_share_least": min(shares),
        "evictions_per_put": refusals / times,
        "us_per_put": 1e6 * spent_s / (extents + times),
        "holes": float(len(space._by_size)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1600)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--extents", type=int, default=50_000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found = measured(asked.samples, asked.rounds, lambda line: print(line, flush=True))
    print(f"\n{'':12} CPU us per sample (least-most)    over files (least-most)")
    ratios = {}
    for name, values in sorted(found.items()):
        least = found[f"{name.partition(' ')[0]} files"]
        ratios[name] = [mine / theirs for mine, theirs in zip(values, least, strict=True)]
        print(
            f"{name:12} {statistics.median(values):8.1f} ({min(values):.1f}-{max(values):.1f})"
            f"{statistics.median(ratios[name]):18.2f} ({min(ratios[name]):.2f}-{max(ratios[name]):.2f})"
        )
    space = allocator(asked.extents, 4 * asked.extents)
    print("\nallocator:", ", ".join(f"{name} {value:.4g}" for name, value in space.items()))
    facts = describe(ROOT)
    print("\n" + ", ".join(f"{name} {value}" for name, value in facts.items()))
    if asked.out:
        asked.out.write_text(
            json.dumps({"us": found, "over_files": ratios, "allocator": space, **facts}, indent=1)
        )


if __name__ == "__main__":
    main()
