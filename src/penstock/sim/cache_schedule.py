"""A simulated training with the caches of its nodes: what it is, and what happens by chance. Values and seeded random numbers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from penstock.cache.space import rounded
from penstock.plan.next_use import SampleOrder, UsePlan
from penstock.plan.permutation import permutation
from penstock.plan.seeds import order_key
from penstock.policy.caching import POLICIES
from penstock.policy.homes import GroupMember, Nodes, find_homes
from penstock.sim.agenda import Agenda

GOES_ON = 1 << 30
MEAN_BYTES = 640
RING_SLACK, MOST_RING = 1.5, 0.5
"""As in `cache.holding`."""
UNPLANNED_STEPS = 10
"""Of an epoch whose order is not ours."""


class CacheFault(NamedTuple):
    """`what`: `rank` (dies and comes back), `service` (begins again with nothing), `cut` (two machines lose sight of each other for a while)."""

    step: int
    what: str
    which: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSchedule:
    """A training, its caches, and what goes wrong."""

    seed: int
    nodes: int = 2
    gpus: int = 2
    """Ranks per node."""
    samples: int = 48
    batch_size: int = 4
    epochs: int = 3
    ahead: int = 2
    """Batches that a rank asks for at a time."""
    policy: str = "auto"
    planned: bool = True
    """Whether the order is ours. If not, batches are drawn: a sample may stand in one twice, and often ranks want the same at a time."""
    memory: int = 48
    """Samples of mean size that a node's memory has room for."""
    disk: int = 0
    lasting: bool = False
    spread: bool = False
    """Whether sizes differ."""
    together: bool = True
    """Whether ranks wait for each other after each step."""
    trouble: float = 0.0
    """How likely each read, write, message and reservation fails."""
    faults: tuple[CacheFault, ...] = ()

    @property
    def world(self) -> int:
        return self.nodes * self.gpus

    @property
    def memory_bytes(self) -> int:
        return self.memory * MEAN_BYTES

    @property
    def _wanted_ring_bytes(self) -> float:
        return RING_SLACK * self.ahead * self.batch_size * self.gpus * MEAN_BYTES

    @property
    def ring_bytes(self) -> int:
        return int(min(MOST_RING * self.memory_bytes, self._wanted_ring_bytes))

    @property
    def is_roomy(self) -> bool:
        """Whether there is always room for what is on its way. A disk that is slow keeps memory full until it has written."""
        return not self.disk and self._wanted_ring_bytes <= MOST_RING * self.memory_bytes

    @property
    def room_bytes(self) -> int:
        return self.memory_bytes - self.ring_bytes + self.disk * MEAN_BYTES

    @property
    def is_calm(self) -> bool:
        return not self.trouble and not self.faults

    @property
    def bound(self) -> float:
        """The least share of the data that the source serves in an epoch after the first."""
        return max(0.0, 1.0 - self.nodes * (self.room_bytes // MEAN_BYTES) / self.samples)


class CacheSetting:
    """What all machines and ranks of a schedule share."""

    def __init__(self, schedule: CacheSchedule, *, audits: bool) -> None:
        self.schedule, self.audits = schedule, audits
        self.rng = random.Random(schedule.seed)
        self.agenda = Agenda()
        self.tally: Counter[str] = Counter()
        self.served: Counter[int] = Counter()
        """Samples that the source was asked for, by epoch."""
        self.cut: set[frozenset[int]] = set()
        """Pairs of machines that do not see each other."""

    # ---- what is given

    @cached_property
    def sizes(self) -> list[int]:
        rng = random.Random(f"sizes {self.schedule.seed}")
        whole = (rng.choice([0.2, 0.5, 1.0, 1.0, 2.3]) for _ in range(self.schedule.samples))
        return [rounded(int(MEAN_BYTES * (times if self.schedule.spread else 1))) for times in whole]

    @cached_property
    def homes(self) -> Nodes | None:
        schedule = self.schedule
        if not POLICIES[schedule.policy].homes:
            return None
        members = [GroupMember(name=node, room_bytes=schedule.room_bytes) for node in range(schedule.nodes)]
        return find_homes(schedule.seed, members, np.full(schedule.samples, MEAN_BYTES, np.int64))

    @cached_property
    def plan(self) -> UsePlan:
        schedule = self.schedule

        @cache
        def order(epoch: int) -> SampleOrder:
            return permutation(order_key(schedule.seed, epoch), schedule.samples)

        return UsePlan(
            length=schedule.samples,
            batch_size=schedule.batch_size,
            nodes=schedule.nodes,
            gpus=schedule.gpus,
            order=order,
            epochs=GOES_ON,
            look_ahead=2 if POLICIES[schedule.policy].drops_far else 4,
        )

    @cached_property
    def steps(self) -> int:
        return self.schedule.epochs * (self.plan.steps if self.schedule.planned else UNPLANNED_STEPS)

    def batch(self, step: int, rank: int) -> list[int]:
        schedule = self.schedule
        if not schedule.planned:
            wanted = random.Random(f"step {schedule.seed} {step}").choices(
                range(schedule.samples), k=schedule.batch_size + 2
            )
            return random.Random(f"batch {schedule.seed} {step} {rank}").choices(
                wanted, k=schedule.batch_size
            )
        samples, ranks = self.plan.global_batch(step)
        return [int(sample) for sample in samples[ranks == rank]]

    # ---- chance

    def later(self, mean_s: float) -> float:
        """Return a time that varies much: now and then it is ten times the mean."""
        return self.rng.expovariate(1.0) * mean_s * (10.0 if self.rng.random() < 0.03 else 1.0)

    def goes_wrong(self, what: str) -> bool:
        wrong = self.rng.random() < self.schedule.trouble
        self.tally[what] += wrong
        return wrong

    def sees(self, one: int, other: int) -> bool:
        return frozenset((one, other)) not in self.cut


def draw_cache(seed: int) -> CacheSchedule:
    """Return a random schedule. Every fifth is without faults; of the others every fourth has no trouble but deaths and cuts."""
    rng = random.Random(f"cache {seed}")
    calm = seed % 5 == 0
    nodes, gpus = rng.randint(1, 4), rng.randint(1, 3)
    ahead = rng.randint(1, 4)
    samples = rng.randint(nodes * gpus, rng.choice([16, 40]))
    batch_size = rng.randint(1, max(2, samples // (2 * nodes * gpus)))
    planned = calm or rng.random() < 0.6
    disk = rng.choice([0, rng.randint(1, samples)])
    ring = int(RING_SLACK * ahead * batch_size * gpus) + 1
    memory = rng.randint(2 * ring, 2 * ring + samples) if calm else rng.randint(2, ring + samples)
    epochs = rng.randint(2, 4)
    faults: list[CacheFault] = []
    if not calm:
        span = 10 * samples * epochs
        for _ in range(rng.choice([0, 1, 2, 5])):
            what = rng.choice(["rank", "service", "cut"])
            faults.append(CacheFault(rng.randrange(span), what, rng.randrange(100)))
    return CacheSchedule(
        seed=seed,
        nodes=nodes,
        gpus=gpus,
        samples=samples,
        batch_size=batch_size,
        epochs=epochs,
        ahead=ahead,
        policy=rng.choice(["auto", "auto", *sorted(POLICIES)]),
        planned=planned,
        memory=memory,
        disk=disk,
        lasting=bool(disk) and rng.random() < 0.4,
        spread=rng.random() < 0.3,
        together=rng.random() < 0.7,
        trouble=0.0 if calm or rng.random() < 0.25 else rng.choice([0.02, 0.1, 0.4]),
        faults=tuple(faults),
    )
