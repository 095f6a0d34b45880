"""What makes up a simulated run: how much work, how samples behave, and which faults strike when.

Everything is a function of the scenario. A sample's fate depends on its place in the run alone, as with a real dataset,
not on who prepares it, when, or in which attempt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.core.events import Kind
from penstock.sim.memory import CELL, Shape
from penstock.wire.extents import ALIGN


class Fault(NamedTuple):
    step: int
    """Simulation step before which it strikes."""
    what: str
    """`kill` a worker, or `freeze` it; kill the `agent`; kill the training process and `restore` it; `retire` a worker that uses too
    much memory; `resize` the pool; `lend` workers' cores to other ranks for a while; `borrow` some, with workers that may fail. Of a pool beside the local one: messages of a worker come `late`; in a `partition` all its workers are
    silent for a while; in an `outage` they are silent and then lost, with all messages under way; `share` changes its share."""
    which: int = 0
    """Worker, modulo the living; for `restore` and `resize` the new worker count."""


class FakePool(NamedTuple):
    """A worker pool beside the local one."""

    workers: int
    slower: float = 1.0
    """Factor on the time its workers take for a sample."""
    latency_s: float = 0.0
    """Mean round-trip time of a message."""
    jitter: float = 0.0
    """Share of the latency by which a message may be early or late."""
    dies: float = 0.0
    """Share of its tasks before which the worker dies."""
    queue_bytes: int = 0
    unreached: float = 0.0
    """Share of its tasks whose data it cannot read."""
    whole: bool = False
    """It takes whole batches."""


class FakeSample(NamedTuple):
    fate: str
    """`fine`, `fails`, `kills` or `hangs`."""
    took_s: float
    shape: Shape | None
    """None: it cannot travel between workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulated run. Shares are of all samples, between 0 and 1."""

    seed: int
    kind: Kind = Kind.SLOTS
    workers: int = 2
    epochs: int = 1
    batches: int = 8
    batch_size: int = 4
    ragged_sizes: bool = False
    """Batches of varying sizes, some empty, as from a batch sampler."""
    window: int = 4
    task_size: int = 0
    in_order: bool = True
    skips: bool = False
    """`on_error="skip"`."""
    limit_bytes: int = 1 << 20
    denied_bytes: int = 1 << 30
    """Growth beyond this is refused, as by a full machine."""
    hang_s: float = 0.0
    sample_s: float = 0.002
    train_s: float = 0.003
    delay_s: float = 0.0002
    """Mean travel time of a message."""
    start_s: float = 0.02
    notice_s: float = 0.0
    """Time until the agent notices a worker's death; until then it may still assign work."""
    keeps: int = 1
    """Batches the user holds, the newest included."""
    slow: float = 0.0
    fails: float = 0.0
    kills: float = 0.0
    hangs: float = 0.0
    odd: float = 0.0
    """Samples of another shape than the rest; a whole batch may be odd too."""
    texts: int = 1
    """Most room a sample's text needs; it varies from 1."""
    refused: bool = False
    """Samples cannot travel between workers."""
    collate_fails: float = 0.0
    collate_keeps: float = 0.0
    """Collates that hold on to their parts for a while."""
    refers: bool = False
    """Collated batches refer to their parts instead of copying them."""
    init_fails: bool = False
    faults: tuple[Fault, ...] = ()
    aborts: tuple[int, ...] = ()
    """Epochs that the user breaks off; the seed says where."""
    proceeds: bool = False
    """The next epoch is prefetched before the last has ended."""
    cells: int = 1
    """Size of a sample in an encoded result, in cells."""
    pools: tuple[FakePool, ...] = ()
    fetch_s: float = 0.0
    """Mean time until some of a batch's bytes arrive; 0: workers read them."""

    def chance(self, *where: int) -> float:
        """Return a number in [0, 1) that belongs to a place."""
        return (hash((self.seed, *where)) >> 16 & 0xFFFFFF) / 0x1000000

    def size(self, epoch: int, batch: int) -> int:
        if not self.ragged_sizes:
            return self.batch_size
        return int(self.chance(1, epoch, batch) * (self.batch_size + 1))

    def sample(self, epoch: int, batch: int, ordinal: int) -> FakeSample:
        place = (epoch, batch, ordinal)
        at, fate = self.chance(2, *place), "fine"
        for name, share in (("fails", self.fails), ("kills", self.kills), ("hangs", self.hangs)):
            at -= share
            if at < 0:
                fate = name
                break
        took_s = self.sample_s * (0.5 + self.chance(3, *place))
        if self.chance(4, *place) < self.slow:
            took_s *= 50
        if self.refused and self.chance(5, epoch, batch) < 0.8:
            return FakeSample(fate, took_s, None)
        all_odd = self.chance(6, epoch, batch) < self.odd * 4
        kind = 1 if all_odd or self.chance(7, *place) < self.odd else 0
        return FakeSample(fate, took_s, Shape(kind, 1 + int(self.chance(8, *place) * self.texts)))

    def stream_length(self, epoch: int, worker: int) -> int:
        """Return the number of batches a worker's iterator yields."""
        return int(self.chance(9, epoch, worker) * 2 * self.batches / self.workers)

    def collate_fate(self, epoch: int, batch: int) -> str:
        return "fails" if self.chance(10, epoch, batch) < self.collate_fails else "fine"

    def break_at(self, epoch: int) -> int:
        """Return how many batches the user takes of an epoch broken off."""
        return int(self.chance(11, epoch) * self.batches)


def draw_pools(rng: random.Random) -> tuple[FakePool, ...]:
    """Draw worker pools: often none, or a few unequal ones, near and far."""
    return tuple(
        FakePool(
            workers=rng.randint(0, 4),
            slower=rng.choice((1.0, 1.0, 3.0, 30.0)),
            latency_s=rng.choice((0.0, 0.002, 0.05, 0.2)),
            jitter=rng.choice((0.0, 0.5)),
            dies=rng.choice((0.0, 0.0, 0.0, 0.05, 1.0)),
            queue_bytes=rng.choice((0, 0, 2048)),
        )
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2)))
    )


def draw_remote(seed: int) -> Scenario:
    """Draw a scenario with a remote pool that is late, partitioned and lost. In every fourth nothing else happens."""
    rng, calm = random.Random(f"remote pool of {seed}"), seed % 4 == 0
    base = draw(seed)
    while base.kind is Kind.STREAM:
        base = draw(rng.randrange(1 << 40))
    remote = FakePool(
        workers=rng.randint(1, 6),
        slower=rng.choice((0.3, 1.0, 3.0)),
        latency_s=rng.choice((0.002, 0.02, 0.2)),
        jitter=rng.choice((0.0, 0.5)),
        dies=0.0 if calm else rng.choice((0.0, 0.0, 0.05)),
        queue_bytes=rng.choice((0, 2048)),
        unreached=rng.choice((0.0, 0.0, 0.1, 0.6)),
        whole=rng.random() < 0.3,
    )
    steps = 12 + 8 * base.batches * base.batch_size * base.epochs
    faults = [
        Fault(rng.randrange(steps), rng.choice(("late", "late", "partition", "outage")), rng.randrange(1000))
        for _ in range(rng.choice((1, 2, 3, 5, 8)))
    ]
    if calm:
        base = replace(
            base, fails=0.0, kills=0.0, hangs=0.0, odd=0.0, refused=False, skips=False, collate_fails=0.0, init_fails=False,
            faults=(), denied_bytes=1 << 30, limit_bytes=1 << 20, keeps=1, pools=(), ragged_sizes=False, slow=0.0,
        )  # fmt: skip
    apart = random.Random(f"shares of {seed}")
    faults += [
        Fault(apart.randrange(steps), "share", apart.randrange(1000))
        for _ in range(apart.choice((0, 0, 1, 2, 5, 12)))
    ]
    return replace(base, pools=(remote, *base.pools), faults=tuple(sorted([*base.faults, *faults])))


def draw(seed: int, *, resizes: bool = True, pools: bool = True, lends: bool = True) -> Scenario:
    """Draw a scenario from all that can happen; most have a few faults, some many, some none. Without `resizes` the worker
    count stays; without `pools` all workers are local and equal; without `lends` all of them may always work; all else is the same."""
    rng = random.Random(seed)

    def maybe(chance: float, value: float) -> float:
        return value * rng.random() if rng.random() < chance else 0.0

    kind = rng.choice((Kind.SLOTS, Kind.SLOTS, Kind.PARTS, Kind.PARTS, Kind.WHOLE, Kind.STREAM))
    workers, batches = rng.randint(1, 8), rng.randint(1, 14)
    batch_size = rng.randint(1, 12)
    cells = rng.choice((1, 1, 8, 40))
    hang_s = rng.choice((0.0, 0.4, 1.0))
    epochs = rng.choice((1, 1, 2, 3))
    steps = 12 + 8 * batches * (batch_size if kind is not Kind.STREAM else 2) * epochs
    names = ["kill"] * 4 + ["freeze", "retire"]
    if kind is not Kind.STREAM:
        names += ["agent", "restore"]
    faults = [
        Fault(rng.randrange(steps), rng.choice(names), rng.randrange(1000))
        for _ in range(rng.choice((0, 1, 1, 2, 3, 5, 8)))
    ]
    if resizes and kind is not Kind.STREAM:
        apart = random.Random(f"resizes of {seed}")
        faults += [
            Fault(apart.randrange(steps), "resize", apart.randrange(8))
            for _ in range(apart.choice((0, 0, 0, 1, 2, 5)))
        ]
    if lends and kind is not Kind.STREAM:
        apart = random.Random(f"loans of {seed}")
        faults += [
            Fault(apart.randrange(steps), "lend", apart.randrange(1000))
            for _ in range(apart.choice((0, 0, 1, 2, 5, 20)))
        ]
    pages = rng.choice((2, 3, 4, 6, 10, 1000, 1000, 1000))
    return Scenario(
        seed=seed,
        kind=kind,
        workers=workers,
        epochs=epochs,
        batches=batches,
        batch_size=batch_size,
        ragged_sizes=rng.random() < 0.15,
        window=rng.choice((1, 2, 4, 8)),
        task_size=rng.choice((0, 0, 1, 2, 3, 5)),
        in_order=rng.random() < 0.85,
        skips=kind is not Kind.STREAM and rng.random() < 0.3,
        limit_bytes=pages * ALIGN * max(1, batch_size * cells * CELL // ALIGN),
        denied_bytes=rng.choice((1 << 30,) * 12 + (3 * ALIGN, 8 * ALIGN)),
        hang_s=hang_s,
        sample_s=rng.choice((0.0001, 0.002, 0.002, 0.03)),
        train_s=rng.choice((0.0, 0.003, 0.05)),
        delay_s=rng.choice((0.00005, 0.0005, 0.005)),
        start_s=rng.choice((0.001, 0.02, 0.3)),
        keeps=rng.choice((1, 1, 1, 2, 5, 1000)),
        slow=maybe(0.3, 0.1),
        fails=maybe(0.25, 0.06),
        kills=maybe(0.12, 0.02),
        hangs=maybe(0.12, 0.02) if hang_s else 0.0,
        odd=maybe(0.25, 0.08),
        texts=rng.choice((1, 1, 3)),
        refused=rng.random() < 0.1,
        collate_fails=maybe(0.15, 0.3),
        collate_keeps=maybe(0.2, 0.6),
        refers=rng.random() < 0.5,
        init_fails=rng.random() < 0.01,
        faults=tuple(sorted(faults)),
        aborts=tuple(epoch for epoch in range(epochs) if rng.random() < 0.2),
        proceeds=rng.random() < 0.4,
        cells=cells,
        notice_s=rng.choice((0.0, 0.0, 0.01, 0.5)),
        pools=draw_pools(random.Random(f"pools of {seed}")) if pools and kind is not Kind.STREAM else (),
        fetch_s=random.Random(f"fetches of {seed}").choice((0.0, 0.0, 0.0, 0.001, 0.03, 0.3)) if kind is not Kind.STREAM else 0.0,
    )  # fmt: skip
