"""The caches of a group of nodes, epoch by epoch: `policy/caching.py` and the plan, with sizes and rates that you choose.

No byte moves and no time passes. Counted are bytes: read by a node from its own cache, from peers, and from the source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.plan.deal import deal_to_owners
from penstock.plan.even import KeptSet, even_order
from penstock.plan.next_use import FAR, SampleOrder, UsePlan
from penstock.plan.permutation import permutation
from penstock.plan.seeds import order_key
from penstock.policy.caching import POLICIES, NodeCache
from penstock.policy.holdings import Directory
from penstock.policy.homes import NOWHERE, GroupMember, Nodes, find_homes

Ints = NDArray[np.int64]
LOCAL, PEERS, FROM_SOURCE = range(3)
GOES_ON = 1 << 30
"""Epochs of the training: a simulation looks at some in its middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheScenario:
    """A training job and its caches."""

    nodes: int
    gpus: int
    """Ranks per node."""
    samples: int
    mean_bytes: float
    """Mean size of a sample."""
    memory_bytes: int
    """Cache of one node, ring included."""
    batch_size: int = 256
    """Samples per batch of one rank."""
    epochs: int = 4
    seed: int = 0
    policy: str = "auto"
    order: str = "as_is"
    """`"even"`: samples that no node keeps are spread evenly over ranks and batches."""
    deal: str = "as_is"
    """`"owner"`: a global batch is dealt to the nodes that keep its samples."""
    ring_batches: int = 4
    """Batches per rank that the ring holds."""
    spread: float = 0.0
    """Standard deviation of the sizes' logarithm; 0: all alike."""
    look_ahead: int = 8
    """Epochs in which the next use is looked for. Policies with the paper's distance rule take 2, which is that rule."""

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus", "samples", "batch_size", "epochs", "look_ahead"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.mean_bytes < 1 or self.memory_bytes < 0 or self.ring_batches < 0 or self.spread < 0:
            raise ConfigError(
                "mean_bytes must be at least 1; memory_bytes, ring_batches and spread at least 0"
            )
        if self.policy not in POLICIES:
            raise ConfigError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        if self.order not in ("as_is", "even") or self.deal not in ("as_is", "owner"):
            raise ConfigError('order must be "as_is" or "even", deal "as_is" or "owner"')
        if (self.order, self.deal) != ("as_is", "as_is") and not POLICIES[self.policy].homes:
            raise ConfigError(f"order and deal follow the samples' homes, which {self.policy!r} has not")

    @property
    def data_bytes(self) -> float:
        return self.samples * self.mean_bytes

    @property
    def ring_bytes(self) -> int:
        """Bytes of one node's ring; at most half its memory."""
        ring = self.ring_batches * self.gpus * self.batch_size * self.mean_bytes
        return int(min(ring, self.memory_bytes / 2))

    @property
    def room_bytes(self) -> int:
        return self.memory_bytes - self.ring_bytes

    @property
    def bound(self) -> float:
        """The least share of the data that the source serves per epoch, whatever the policy, with this room."""
        return max(0.0, 1.0 - self.nodes * self.room_bytes / self.data_bytes)

    def sizes(self) -> Ints:
        """Return the sizes of all samples: lognormal, with the mean that was given."""
        if not self.spread:
            return np.full(self.samples, round(self.mean_bytes), np.int64)
        drawn = np.random.default_rng(self.seed).lognormal(0.0, self.spread, self.samples)
        sizes: Ints = np.maximum(1, drawn * (self.mean_bytes / drawn.mean())).astype(np.int64)
        return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTraffic:
    """One epoch of all ranks."""

    shares: tuple[float, float, float]
    """Shares of the epoch's bytes: from the node's own cache, from peers, from the source."""
    peer_bytes: NDArray[np.float64]
    """Read from peers, by step and rank."""
    source_bytes: NDArray[np.float64]
    """Read from the source, by step and rank."""


def simulate_cache(
    scenario: CacheScenario, progress: Callable[[int, int], None] = lambda _done, _of: None
) -> list[EpochTraffic]:
    """Play all epochs. `progress`: told the steps done, of how many."""
    group = _Group(scenario)
    epochs = []
    for epoch in range(scenario.epochs):
        epochs.append(group.epoch(epoch))
        progress(epoch + 1, scenario.epochs)
    return epochs


class _Group:
    def __init__(self, scenario: CacheScenario) -> None:
        self.scenario = scenario
        self.sizes = scenario.sizes()
        rules = POLICIES[scenario.policy]
        members = [GroupMember(name=node, room_bytes=scenario.room_bytes) for node in range(scenario.nodes)]
        homes = find_homes(scenario.seed, members, self.sizes) if rules.homes else None
        self.directory = Directory(scenario.samples, scenario.nodes, homes)
        self.caches = [
            NodeCache(node, room_bytes=scenario.room_bytes, rules=rules, directory=self.directory)
            for node in range(scenario.nodes)
        ]
        self.plan = UsePlan(
            length=scenario.samples,
            batch_size=scenario.batch_size,
            nodes=scenario.nodes,
            gpus=scenario.gpus,
            order=_orders(scenario, self.directory.homes),
            epochs=GOES_ON,
            look_ahead=2 if rules.drops_far else scenario.look_ahead,
        )

    def epoch(self, epoch: int) -> EpochTraffic:
        steps, world = self.plan.steps, self.plan.world
        read = np.zeros((3, steps, world))
        for at in range(steps):
            samples, ranks = self.plan.global_batch(epoch * steps + at)
            if self.scenario.deal == "owner":
                ranks = deal_to_owners(self.directory.homes[samples], ranks, gpus=self.scenario.gpus)
            kinds = self._step(epoch * steps + at, samples, ranks)
            sizes = self.sizes[samples]
            for kind in range(3):
                of = kinds == kind
                read[kind, at] = np.bincount(ranks[of], sizes[of], minlength=world)
        shares = read.sum(axis=(1, 2)) / read.sum()
        return EpochTraffic(
            shares=(float(shares[LOCAL]), float(shares[PEERS]), float(shares[FROM_SOURCE])),
            peer_bytes=read[PEERS],
            source_bytes=read[FROM_SOURCE],
        )

    def _step(self, step: int, samples: Ints, ranks: Ints) -> NDArray[np.int8]:
        """Play one step of all nodes; return where each sample came from."""
        kinds = np.empty(len(samples), np.int8)
        nodes = ranks // self.scenario.gpus
        order = np.argsort(nodes, kind="stable")
        ends = np.searchsorted(nodes[order], np.arange(self.scenario.nodes + 1))
        parts = [order[ends[node] : ends[node + 1]] for node in range(self.scenario.nodes)]
        for node, part in enumerate(parts):
            asks = self.caches[node].ahead(samples[part])
            unread = self.directory.copies[samples[part]] == 0
            kinds[part] = np.where(unread, FROM_SOURCE, np.where(asks == node, LOCAL, PEERS))
        self._homes_keep(samples)
        for node, part in enumerate(parts):
            used = samples[part]
            if self.scenario.deal == "owner":
                next_use = np.full(len(used), FAR)  # its home uses it next
            else:
                next_use = self.plan.next_use(used, node, step)
            self.caches[node].used(step, used, self.sizes[used], next_use)
        return kinds

    def _homes_keep(self, samples: Ints) -> None:
        """Tell homes what is used and they do not hold yet."""
        homes = self.directory.homes[samples]
        new = (homes != NOWHERE) & ~self.directory.at_home(samples)
        for home in np.unique(homes[new]).tolist():
            asked = samples[new & (homes == home)]
            self.caches[home].asked(asked, self.sizes[asked])


def _orders(scenario: CacheScenario, homes: Nodes) -> Callable[[int], SampleOrder]:
    if scenario.order == "even":
        kept = KeptSet(homes != NOWHERE, scenario.seed)
        return partial(_even, kept, scenario.nodes * scenario.gpus)
    return partial(_plain, scenario.seed, scenario.samples)


def _even(kept: KeptSet, world: int, epoch: int) -> SampleOrder:
    return even_order(kept, epoch, world)


def _plain(seed: int, samples: int, epoch: int) -> SampleOrder:
    return permutation(order_key(seed, epoch), samples)
