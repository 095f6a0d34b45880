"""Performs what the keeper of one dataset says: reads, memory, disk, peers. All methods are for the service's main thread but those that say otherwise."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.cache import keeper_actions as kp
from penstock.cache.disk_side import DiskSide
from penstock.cache.frames import AskedBatch
from penstock.cache.join_facts import GroupPlan, JoinFacts
from penstock.cache.keeper import Keeper
from penstock.cache.keeper_actions import KeeperAction
from penstock.cache.keys import sample_key
from penstock.cache.parts import DatasetParts
from penstock.cache.peer_events import PeerAsker
from penstock.cache.peer_side import PeerSide
from penstock.cache.read_jobs import NoRoom, grouped
from penstock.cache.readers import Outcome, Readers, StuckRead
from penstock.cache.reading_pool import together
from penstock.cache.space import rounded
from penstock.cache.uses import uses_of
from penstock.errors import PenstockError
from penstock.policy.caching import POLICIES, NodeCache
from penstock.policy.holdings import Directory
from penstock.policy.homes import Nodes
from penstock.wire.places import UNREAD, Landing

log = logging.getLogger("penstock")

MOST_RING = 0.5
"""Share of the memory for what is on its way or in use."""
RING_SLACK, LEAST_RING = 1.5, 32
"""Samples of a batch may be larger than the mean, holes in memory do not fit all, and peers are given some: so many times the samples on their way, and so
many at least."""
HOLD_S = 0.02
UNKNOWN_BYTES = 100 << 10
"""A sample's bytes, if no probe could be looked at."""
MOST_STEP = 1 << 62
"""Steps are counted in 64 bits, and looked ahead of."""
Begun = Callable[[bool], None]
Post = Callable[[Callable[[], None]], None]
"""Has a call made by the service's main thread."""


class BatchOf(NamedTuple):
    """A batch, as the keeper knows it."""

    stream: Hashable
    seq: int


class CacheTally:
    """Where samples were found."""

    def __init__(self) -> None:
        self.samples: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.waits_s = 0.0
        """Seconds between asking for a batch and its last sample, summed over batches that had to wait."""
        self.waited = 0

    def add(self, where: str, nbytes: int) -> None:
        self.samples[where] += 1
        self.bytes[where] += nbytes


class CachedDataset:
    """One dataset of a job on this machine."""

    def __init__(self, facts: JoinFacts, parts: DatasetParts, post: Post) -> None:
        """The parts are closed with it."""
        self.facts, self.sample_bytes = facts, max(0, parts.sample_bytes) or UNKNOWN_BYTES
        self._post: Post = lambda call: post(partial(self._unless_closed, call))
        self._closed = False
        self.left_s = 0.0
        """When a loader last left it."""
        self.scope = bytes.fromhex(facts.scope)
        self.tier = parts.memory
        self.fd = self.tier.open_for_reading()
        self._divide()
        self.tier.tell_of_less(lambda _: self._post(self._has_less))
        self.tally = CacheTally()
        self._found_at: dict[int, str] = {}
        """Where samples on their way come from."""
        self._asked_s: dict[BatchOf, tuple[float, int]] = {}
        self._held_s: dict[BatchOf, float] = {}
        """Since when something of a batch is to be told."""
        self.landed: dict[BatchOf, list[Landing]] = {}
        """To be told to those who asked."""
        self.keeper: Keeper | None = None
        self.plan: GroupPlan | None = None
        self.disk = DiskSide(facts, parts.disk, self.tier, self)
        self.readers = Readers(
            place=self.place,
            done=self.was_read,
            released=self.released,
            settings=facts.settings,
            cwd=facts.cwd,
        )
        for name, stamp in facts.stamps.items():
            self.readers.expect(name, stamp)
        self._pool = parts.pool
        if self._pool is not None:
            self._pool.serve(self)
        self.peers = PeerSide(facts, self.tier, self, self._post)
        self._arrived: deque[tuple[int, tuple[int, ...]]] = deque()
        """Samples that were read, and the keeper does not know of."""
        self._told_arrived = False
        self._followers: list[Begun] = []
        """Told when there is a plan."""
        self._early: list[Callable[[], None]] = []
        """What peers wanted before the plan was known here."""
        self._reads: list[kp.ReadSource] = []
        """To be read, of one batch."""

    def _divide(self) -> None:
        """Divide memory between the ring and what is kept."""
        ring = max(LEAST_RING, RING_SLACK * self.facts.ring_samples) * self.sample_bytes
        self.ring_bytes = int(min(MOST_RING * self.tier.max_bytes, ring))
        self.memory_room = self.tier.max_bytes - self.ring_bytes

    def _has_less(self) -> None:
        """There is less memory than was asked for: it showed when it was to be used."""
        self._divide()
        if self.keeper is not None:
            self.perform(self.keeper.has_less(self.tier.max_bytes, self.memory_room, self.room_bytes))

    @property
    def room_bytes(self) -> int:
        return self.memory_room + self.disk.room_bytes

    def follow(self, plan: GroupPlan, begun: Begun) -> None:
        """Begin, with the machines of the job; a later plan changes nothing. `begun` is called once they are met, or if that is not to be."""
        if self.keeper is not None:
            self.peers.when_met(partial(begun, True))
            return
        self._followers.append(begun)
        if len(self._followers) == 1:
            find = partial(self._find_homes, plan)
            threading.Thread(target=find, name="penstock cache homes", daemon=True).start()

    def _find_homes(self, plan: GroupPlan) -> None:
        """Find homes in a thread: for many machines that takes seconds, in which other datasets would be silent."""
        try:
            homes = plan.owners.homes(self.facts.samples) if POLICIES[self.facts.cache.policy].homes else None
            self._post(partial(self._begin, plan, homes))
        except (MemoryError, PenstockError, ValueError) as exc:
            log.warning("cache: there is no room for the homes of its samples: %s", exc)
            self._post(self._cannot_begin)

    def _cannot_begin(self) -> None:
        followers, self._followers = self._followers, []
        for begun in followers:
            begun(False)

    def _begin(self, plan: GroupPlan, homes: Nodes | None) -> None:
        self.plan = plan
        self.peers.join(plan)
        early, self._early = self._early, []
        rules = POLICIES[self.facts.cache.policy]
        directory = Directory(self.facts.samples, len(plan.owners.members), homes)
        self.keeper = Keeper(
            NodeCache(plan.node, room_bytes=self.room_bytes, rules=rules, directory=directory),
            uses_of(plan, self.facts.samples, self.facts.cache.policy),
            memory_room=self.memory_room,
            memory_bytes=self.tier.max_bytes,
            typical_bytes=rounded(self.sample_bytes),
            disk=self.disk.is_there,
            lasting=self.disk.lasts,
            announces=not rules.homes and len(plan.owners.members) > 1,
        )
        for call in early:
            call()
        followers, self._followers = self._followers, []
        for begun in followers:
            self.peers.when_met(partial(begun, True))

    # ---- batches

    def ask(self, stream: Hashable, asked: AskedBatch, rank: int) -> None:
        batch = BatchOf(stream, asked.seq)
        step = 0 if self.plan is None else asked.epoch * self.plan.steps(self.facts.samples) + asked.batch
        if self.keeper is None or not 0 <= step < MOST_STEP or not self._are_known(asked.samples):
            self.landed[batch] = [Landing(ordinal, UNREAD) for ordinal in range(len(asked.samples))]
            return
        self._asked_s[batch] = time.monotonic(), len(asked.samples)
        self.perform(self.keeper.ask(batch, step, rank, asked.samples, asked.ranges))

    def _are_known(self, samples: Sequence[int]) -> bool:
        return all(0 <= sample < self.facts.samples for sample in samples)

    def over(self, stream: Hashable, seq: int, *, used: bool) -> None:
        batch = BatchOf(stream, seq)
        self.landed.pop(batch, None)
        self._asked_s.pop(batch, None)
        self._held_s.pop(batch, None)
        if self.keeper is not None:
            self.perform(self.keeper.over(batch, used=used))
        self.tier.leave(batch)

    # ---- actions

    def perform(self, actions: Sequence[KeeperAction]) -> None:
        for action in actions:
            match action:
                case kp.Land(batch, ordinal, sample, lengths):
                    self._land(batch, ordinal, sample, lengths)
                case kp.LeaveUnread(batch, ordinal):
                    self._tell(batch, Landing(ordinal, UNREAD))
                    self.tally.add("unread", 0)
                case kp.ReadSource():
                    self._found_at[action.sample] = "source"
                    self._reads.append(action)
                case kp.ReadDisk(sample, ranges):
                    self._found_at[sample] = "disk"
                    self.disk.fetch(sample, ranges)
                case kp.AskPeer():
                    self._found_at[action.sample] = "peers"
                    self.peers.ask(action)
                case kp.Give(peer, sample, lengths):
                    self.peers.give(peer, sample, lengths)
                    self._found_at.pop(sample, None)
                case kp.Refuse(peer, sample):
                    self.peers.refuse(peer, sample)
                case kp.Evict(sample):
                    self.tier.evict(sample_key(self.scope, sample))
                case kp.Spill(sample, ranges):
                    self.disk.spill(sample, ranges)
                case kp.Unspill(sample, ranges):
                    self.disk.remove(ranges)
                case kp.AnnounceHeld(holds, drops):
                    self.peers.announce(holds, drops)
        self._submit()
        self.peers.flush()

    def _submit(self) -> None:
        if self._reads:
            reads, self._reads = self._reads, []
            step, rank = reads[0].step, reads[0].rank
            jobs = grouped(step, rank, [(each.sample, tuple(each.ranges)) for each in reads])
            if self._pool is not None:
                jobs = self._pool.submit_many(jobs)
            self.readers.submit_many(jobs)

    def _land(self, batch: Any, ordinal: int, sample: int, lengths: tuple[int, ...]) -> None:
        (place,) = self.tier.lookup([sample_key(self.scope, sample)], batch)
        where = self._found_at.pop(sample, "memory")
        self.tally.add(where, sum(lengths))
        self._tell(
            batch, Landing(ordinal, UNREAD) if place is None else Landing(ordinal, place.offset, lengths)
        )

    def to_tell(self, now_s: float, is_due: Callable[[BatchOf], bool]) -> list[tuple[BatchOf, list[Landing]]]:
        """Return what its askers are to be told now. A batch that is not due is told of as a whole, or after a moment: an agent takes as long to hear of one
        sample as of a batch."""
        ready = [
            batch
            for batch in self.landed
            if batch not in self._asked_s
            or is_due(batch)
            or now_s - self._held_s.setdefault(batch, now_s) >= HOLD_S
        ]
        for batch in ready:
            self._held_s.pop(batch, None)
        return [(batch, self.landed.pop(batch)) for batch in ready]

    def _tell(self, batch: Any, landing: Landing) -> None:
        self.landed.setdefault(batch, []).append(landing)
        if batch in self._asked_s:
            began_s, left = self._asked_s[batch]
            self._asked_s[batch] = began_s, left - 1
            if left == 1:
                del self._asked_s[batch]
                self.tally.waits_s += time.monotonic() - began_s
                self.tally.waited += 1

    # ---- called by reading threads, and those of reading processes

    def lend(self, sample: int, nbytes: int) -> int | None:
        return self.tier.lend(sample_key(self.scope, sample), nbytes, "readers")

    def place(self, sample: Any, nbytes: int) -> memoryview | None:
        return self.tier.reserve(sample_key(self.scope, sample), nbytes, "readers")

    def was_read(
        self, sample: Any, outcome: Outcome, check: int | None = None, lent_at: int | None = None
    ) -> None:
        key = sample_key(self.scope, sample)
        if isinstance(outcome, tuple) and self.tier.commit(key, made=check):
            self._arrived.append((sample, outcome))
            if not self._told_arrived:
                self._told_arrived = True
                self._post(self._take_arrived)
            return
        if isinstance(outcome, NoRoom):
            self._post(partial(self.no_room, sample))
            return
        if not isinstance(outcome, StuckRead):  # guard: stuck-memory
            self.tier.abandon(key, lent_at)
        self._post(partial(self.not_come, sample))

    def released(self, sample: Any, lent_at: int | None = None) -> None:
        """Nobody writes to a sample's memory any more, whose read was given up."""
        self.tier.abandon(sample_key(self.scope, sample), lent_at)

    # ---- what they did

    def _take_arrived(self) -> None:
        """Tell the keeper of all that was read since: one by one, that takes longer than to read them."""
        assert self.keeper is not None
        self._told_arrived = False  # before looking: what comes now tells again
        arrived = [self._arrived.popleft() for _ in range(len(self._arrived))]
        if arrived:
            self.perform(self.keeper.came_all(arrived))

    def came_from_peer(self, sample: int, lengths: tuple[int, ...]) -> None:
        self._arrived.append((sample, lengths))
        self._take_arrived()

    def peer_wants(self, peer: PeerAsker, step: int, samples: Sequence[tuple[int, kp.Ranges]]) -> None:
        if self.keeper is None:
            self._early.append(partial(self.peer_wants, peer, step, samples))
            return
        if not self._are_known([sample for sample, _ in samples]):
            for sample, _ in samples:
                self.peers.refuse(peer, sample)
            return
        self.perform(self.keeper.wanted(peer, step, samples))

    def peer_holds(self, node: int, holds: Sequence[int], drops: Sequence[int], *, anew: bool) -> None:
        if self.keeper is None:
            self._early.append(partial(self.peer_holds, node, holds, drops, anew=anew))
        elif self.plan is not None and 0 <= node < len(self.plan.owners.members) and self._are_known(holds):
            self.keeper.announced(node, holds, [each for each in drops if self._are_known([each])], anew=anew)

    def announced_samples(self) -> list[int] | None:
        return None if self.keeper is None or not self.keeper.announces else self.keeper.held()

    def given(self, sample: int) -> None:
        assert self.keeper is not None
        self.perform(self.keeper.given(sample))

    def not_come(self, sample: int) -> None:
        assert self.keeper is not None
        self.perform(self.keeper.did_not_come(sample))

    def no_room(self, sample: int) -> None:
        assert self.keeper is not None
        self.perform(self.keeper.no_room(sample))

    def was_spilled(self, sample: int, *, ok: bool) -> None:
        """Take note from a disk thread."""
        assert self.keeper is not None
        self._post(lambda: self.perform(self.keeper.spilled(sample, ok=ok)) if self.keeper else None)

    # ---- the rest

    def _unless_closed(self, call: Callable[[], None]) -> None:
        if not self._closed:
            call()

    def stats(self) -> dict[str, Any]:
        memory = self.tier.stats()
        return {
            "samples": dict(self.tally.samples),
            "bytes": dict(self.tally.bytes),
            "batches": self.tally.waited,
            "waits_s": self.tally.waits_s,
            "sample_bytes": self.sample_bytes,
            "data_bytes": self.sample_bytes * self.facts.samples,
            "nodes": 1 if self.plan is None else len(self.plan.owners.members),
            "memory_bytes": memory["bytes"],
            "memory_max_bytes": memory["max_bytes"],
            "ring_bytes": self.ring_bytes,
            "room_bytes": self.room_bytes,
            "entries": memory["entries"],
            "leased": memory["leased"],
            "kept_bytes": 0 if self.keeper is None else self.keeper.cache.held_bytes,
            "disk": self.disk.stats(),
            "readers": together([self.readers.stats(), *(self._pool.stats() if self._pool else ())]),
            "peers": self.peers.stats(),
        }

    def end(self) -> None:
        """From now on, nothing that was posted is done."""
        self._closed = True

    def close(self) -> None:
        """Wait for all threads and processes: for up to half a minute, if one hangs."""
        self.end()
        self.readers.close()
        if self._pool is not None:
            self._pool.close()
        self.peers.close()
        self.disk.close()
        self.tier.close()
        os.close(self.fd)


def as_json(stats: dict[str, Any]) -> bytes:
    return json.dumps(stats).encode()
