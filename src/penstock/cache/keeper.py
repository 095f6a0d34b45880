"""One dataset in the cache of one machine: who is asked for which sample, who waits for it, what is kept. Events in, actions out; nothing is performed here.

Rule 1: a sample is fetched once at a time, however many wait for it.
Rule 2: whoever asked for a batch hears of each of its samples once: that it has landed, or that it must be read without the cache.
Rule 3: bytes stay in memory while a batch that was told of them, or a peer that is being given them, is not over.
Rule 4: what a peer or the disk does not give is read from the source. What the source does not give is for the asker to read: it raises the right error.
Rule 5: a sample that finds no room waits until a batch is over. Samples of a rank's oldest open batch do not wait: whoever needs them reads them, so that
        ranks that wait for one another go on.
Rule 6: a peer is never sent on to another peer, nor waits for one: two that ask each other would wait for ever.
Rule 7: what is kept, and at whom a sample is asked for, is `policy.caching`'s to say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.cache.keeper_actions import (
    AnnounceHeld,
    Asker,
    AskPeer,
    Evict,
    Give,
    KeeperAction,
    Land,
    LeaveUnread,
    Ranges,
    ReadDisk,
    ReadSource,
    Refuse,
    Spill,
    Unspill,
)
from penstock.cache.keeper_state import DISK, PARKED, CachedSample, OpenBatch
from penstock.cache.space import rounded
from penstock.plan.next_use import NEVER
from penstock.policy.caching import CacheChange, NodeCache
from penstock.policy.holdings import SOURCE

Ints = NDArray[np.int64]


class Uses(Protocol):
    """When this machine uses samples next."""

    def add(self, step: int, samples: Ints) -> None: ...

    def next_use(self, samples: Ints, after: int) -> Ints: ...


class Keeper:
    """The state of one dataset. `memory_room`: bytes of kept samples that memory holds; others go to disk, if there is one."""

    def __init__(
        self,
        cache: NodeCache,
        uses: Uses,
        *,
        memory_room: int,
        memory_bytes: int,
        typical_bytes: int,
        disk: bool = False,
        lasting: bool = False,
        announces: bool = False,
    ) -> None:
        self.cache, self.uses = cache, uses
        self.memory_room, self.disk, self.lasting, self.announces = memory_room, disk, lasting, announces
        self.memory_bytes, self.typical_bytes = memory_bytes, typical_bytes
        """`memory_room`: bytes of kept samples that memory holds, of `memory_bytes`. `typical_bytes`: what a sample is taken for until it is there.
        `lasting`: the disk may have samples of earlier runs, so it is asked before the source."""
        self.in_memory = 0
        """Bytes of kept samples in memory."""
        self.here_bytes = 0
        """Bytes in memory."""
        self.coming = 0
        """Samples on their way."""
        self._samples: dict[int, CachedSample] = {}
        self._batches: dict[Asker, OpenBatch] = {}
        self._by_rank: dict[int, list[Asker]] = defaultdict(list)
        """Open batches of each rank, the oldest first."""
        self._parked: dict[int, None] = {}
        """Samples that wait for room, the longest waiting first."""

    # ---- batches

    def ask(
        self, batch: Asker, step: int, rank: int, samples: list[int], ranges: Sequence[Ranges]
    ) -> list[KeeperAction]:
        """A rank will need a batch at a step of its training. ValueError, before anything has changed: this makes no sense."""
        if batch in self._batches or len(samples) != len(ranges):
            raise ValueError(
                f"a batch is asked for twice, or {len(samples)} samples have {len(ranges)} ranges"
            )
        out: list[KeeperAction] = []
        opened = self._batches[batch] = OpenBatch(step, rank, samples)
        self._by_rank[rank].append(batch)
        keys = np.array(samples, np.int64)
        self.uses.add(step, unique(samples))
        nodes = self.cache.ahead(keys).tolist()
        for ordinal, (sample, where, node) in enumerate(zip(samples, ranges, nodes, strict=True)):
            cached = self._samples.setdefault(sample, CachedSample(where, step=step, rank=rank))
            if cached.ranges != where:  # guard: other-ranges
                out.append(LeaveUnread(batch, ordinal))
                continue
            if cached.here:
                cached.users += 1
                opened.told.add(ordinal)
                out.append(Land(batch, ordinal, sample, cached.lengths))
                continue
            cached.waiting.append((batch, ordinal))
            if cached.asked == PARKED and self._is_oldest(batch):
                del self._parked[sample]
                cached.asked = None
            if cached.asked is None:
                cached.step, cached.rank = step, rank
                self._fetch(sample, cached, node, out)
        return out

    def over(self, batch: Asker, *, used: bool) -> list[KeeperAction]:
        """A batch was delivered (`used`), or is not wanted any more."""
        opened = self._batches.pop(batch, None)
        out: list[KeeperAction] = []
        if opened is None:
            return out
        self._by_rank[opened.rank].remove(batch)
        if not self._by_rank[opened.rank]:
            del self._by_rank[opened.rank]
        for ordinal, sample in enumerate(opened.samples):
            cached = self._samples.get(sample)
            if cached is None:
                continue
            if ordinal in opened.told:
                cached.users -= 1
            elif (batch, ordinal) in cached.waiting:
                cached.waiting.remove((batch, ordinal))
        if used:
            there = unique(
                sample
                for sample in opened.samples
                if (cached := self._samples.get(sample)) and (cached.here or cached.kept)
            )
            if len(there):
                next_use = self._next_use(there, opened.step)
                self._apply(self.cache.used(opened.step, there, self._sizes(there), next_use), out)
        for sample in dict.fromkeys(opened.samples):
            self._let_go(sample, out)
        oldest = self._by_rank.get(opened.rank)
        urgent = self._batches[oldest[0]].samples if oldest else []
        self._unpark([*opened.samples, *urgent], out)
        return out

    # ---- what was fetched

    def came(self, sample: int, lengths: tuple[int, ...]) -> list[KeeperAction]:
        """A sample's bytes are in memory."""
        return self.came_all([(sample, lengths)])

    def came_all(self, arrivals: Sequence[tuple[int, tuple[int, ...]]]) -> list[KeeperAction]:
        """Samples' bytes are in memory. To decide on many at once costs little more than on one."""
        out: list[KeeperAction] = []
        new: list[int] = []
        for sample, lengths in arrivals:
            cached = self._samples[sample]
            # Without `lasting`, what came from disk may have been dropped, and removed there, since it was asked for.
            cached.on_disk |= self._fetched(cached) == DISK and self.lasting
            cached.here, cached.lengths, cached.size = True, lengths, rounded(sum(lengths))
            self.here_bytes += cached.size
            if not cached.kept:
                new.append(sample)
        if new:
            keys = np.array(new, np.int64)
            self._apply(self.cache.asked(keys, self._sizes(keys)), out)
        for sample, lengths in arrivals:
            cached = self._samples[sample]
            waiting, cached.waiting = cached.waiting, []
            for batch, ordinal in waiting:
                cached.users += 1
                self._batches[batch].told.add(ordinal)
                out.append(Land(batch, ordinal, sample, lengths))
            peers, cached.peers = cached.peers, []
            for peer in peers:
                cached.users += 1
                out.append(Give(peer, sample, lengths))
            self._let_go(sample, out)
        self._unpark((), out)
        return out

    def did_not_come(self, sample: int) -> list[KeeperAction]:
        """Whoever was asked for a sample does not give it."""
        out: list[KeeperAction] = []
        cached = self._samples[sample]
        asked = self._fetched(cached)
        if asked == DISK:
            if cached.on_disk:  # it may be there still, and would never be removed
                out.append(Unspill(sample, cached.ranges))
            self._lost_on_disk(sample, cached, out)
        if asked != SOURCE and (cached.waiting or cached.peers):
            self._ask_source(sample, cached, out)
            return out
        waiting, cached.waiting = cached.waiting, []
        out.extend(LeaveUnread(batch, ordinal) for batch, ordinal in waiting)
        peers, cached.peers = cached.peers, []
        out.extend(Refuse(peer, sample) for peer in peers)
        self._let_go(sample, out)
        return out

    def no_room(self, sample: int) -> list[KeeperAction]:
        """A sample could not be fetched, for want of memory."""
        out: list[KeeperAction] = []
        cached = self._samples[sample]
        self._fetched(cached)
        peers, cached.peers = cached.peers, []
        out.extend(Refuse(peer, sample) for peer in peers)
        waiting, cached.waiting = cached.waiting, []
        for batch, ordinal in waiting:
            if self._is_oldest(batch):
                out.append(LeaveUnread(batch, ordinal))
            else:
                cached.waiting.append((batch, ordinal))
        if cached.waiting:
            self._park(sample, cached)
        self._let_go(sample, out)
        return out

    def _is_oldest(self, batch: Asker) -> bool:
        opened = self._batches.get(batch)
        return opened is None or self._by_rank[opened.rank][0] == batch

    def _park(self, sample: int, cached: CachedSample) -> None:
        cached.asked = PARKED
        self._parked[sample] = None

    def _unpark(self, samples: Iterable[int], out: list[KeeperAction]) -> None:
        """Ask again for as many parked samples as have left memory; and for those of `samples` that cannot wait any more, or that nobody waits for."""
        changed = [
            sample
            for sample in dict.fromkeys(samples)
            if sample in self._parked
            and (not self._samples[sample].waiting or self._is_urgent(self._samples[sample]))
        ]
        room = sum(type(action) is Evict for action in out)
        for sample in dict.fromkeys([*changed, *islice(self._parked, room)]):
            cached = self._samples[sample]
            del self._parked[sample]
            cached.asked = None
            if cached.waiting:
                node = int(self.cache.ahead(np.array([sample], np.int64))[0])
                self._fetch(sample, cached, node, out)
            self._let_go(sample, out)

    # ---- peers

    def wanted(self, peer: Asker, step: int, samples: Sequence[tuple[int, Ranges]]) -> list[KeeperAction]:
        """A peer asks for samples."""
        out: list[KeeperAction] = []
        for sample, ranges in samples:
            cached = self._samples.setdefault(sample, CachedSample(ranges, step=step))
            if cached.ranges != ranges:
                out.append(Refuse(peer, sample))
                continue
            if cached.here:
                cached.users += 1
                out.append(Give(peer, sample, cached.lengths))
                continue
            if cached.asked not in (None, SOURCE, DISK):
                out.append(Refuse(peer, sample))
                continue
            cached.peers.append(peer)
            if cached.asked is None:
                cached.step = step
                self._fetch(sample, cached, SOURCE, out)
        return out

    def given(self, sample: int) -> list[KeeperAction]:
        """A peer has been sent a sample, or is gone."""
        out: list[KeeperAction] = []
        cached = self._samples.get(sample)
        if cached is not None:
            cached.users -= 1
            self._let_go(sample, out)
            self._unpark((), out)
        return out

    def peer_left(self, peer: Asker) -> None:
        """A peer is gone: it waits for nothing."""
        for cached in self._samples.values():
            cached.peers = [other for other in cached.peers if other != peer]

    def announced(self, node: int, holds: Sequence[int], drops: Sequence[int], *, anew: bool = False) -> None:
        """Another node has said what it holds and what no more; `anew`: and nothing else."""
        directory = self.cache.directory
        if anew:
            directory.forget(node)
        new, old = unique(holds), unique(drops)
        directory.gain(node, new[~directory.has(node, new)])
        directory.lose(node, old[directory.has(node, old)])

    # ---- disk

    def spilled(self, sample: int, *, ok: bool) -> list[KeeperAction]:
        """A sample is on disk, or could not be put there."""
        out: list[KeeperAction] = []
        cached = self._samples.get(sample)
        if cached is None:
            return out
        cached.spilling, cached.on_disk = False, ok
        if not ok:
            self._lost_on_disk(sample, cached, out)
        elif not cached.kept and not self.lasting:  # it was dropped meanwhile
            cached.on_disk = False
            out.append(Unspill(sample, cached.ranges))
        self._let_go(sample, out)
        self._unpark((), out)
        return out

    # ---- the rest

    def has_less(self, memory_bytes: int, memory_room: int, room_bytes: int) -> list[KeeperAction]:
        """There is less memory than was thought: hold less, so that there is a ring again."""
        out: list[KeeperAction] = []
        self.memory_bytes, self.memory_room, self.cache.room_bytes = memory_bytes, memory_room, room_bytes
        for sample in sorted(self.held(), reverse=True):
            if self.in_memory <= memory_room and self.cache.held_bytes <= room_bytes:
                break
            cached = self._samples[sample]
            if not cached.stays:
                continue
            keys = np.array([sample], np.int64)
            self.cache.lost(keys, self._sizes(keys))
            self._drop(sample, cached, out)
            if self.announces:
                out.append(AnnounceHeld((), (sample,)))
            self._let_go(sample, out)
        self._unpark((), out)
        return out

    def held(self) -> list[int]:
        """Return the samples that are kept."""
        return [sample for sample, cached in self._samples.items() if cached.kept]

    def _fetch(self, sample: int, cached: CachedSample, node: int, out: list[KeeperAction]) -> None:
        if self._must_wait(cached):
            self._park(sample, cached)
            return
        self.coming += 1
        if cached.on_disk or (self.lasting and node in (SOURCE, self.cache.node)):
            cached.asked = DISK
            out.append(ReadDisk(sample, cached.ranges))
        elif node in (SOURCE, self.cache.node):
            self.coming -= 1
            self._ask_source(sample, cached, out)
        else:
            cached.asked = node
            out.append(AskPeer(node, sample, cached.ranges, cached.step))

    def _ask_source(self, sample: int, cached: CachedSample, out: list[KeeperAction]) -> None:
        self.coming += 1
        cached.asked = SOURCE
        out.append(ReadSource(sample, cached.ranges, cached.step, cached.rank))

    def _fetched(self, cached: CachedSample) -> int | None:
        """Note that whoever was asked has answered; return who it was."""
        asked, cached.asked = cached.asked, None
        self.coming -= 1
        return asked

    def _must_wait(self, cached: CachedSample) -> bool:
        """Whether there is hardly room for a sample, and nobody needs it at once: to fetch it in vain would be a read too many."""
        full = self.here_bytes + (self.coming + 1) * self.typical_bytes > self.memory_bytes
        return full and not self._is_urgent(cached)

    def _is_urgent(self, cached: CachedSample) -> bool:
        """Whether a peer waits for it, or the oldest batch of a rank."""
        return bool(cached.peers) or any(self._is_oldest(batch) for batch, _ in cached.waiting)

    def _next_use(self, samples: Ints, step: int) -> Ints:
        """Return when samples are used next. Only of those that are kept by choice it matters, and to look costs time."""
        found = np.full(len(samples), NEVER, np.int64)
        by_choice = ~self.cache.is_home(samples)
        if by_choice.any():
            found[by_choice] = self.uses.next_use(samples[by_choice], step)
        return found

    def _sizes(self, samples: Ints) -> Ints:
        known = self._samples
        return np.array(
            [known[sample].size if sample in known else 0 for sample in samples.tolist()], np.int64
        )

    def _apply(self, change: CacheChange, out: list[KeeperAction]) -> None:
        for sample in change.holds.tolist():
            cached = self._samples[sample]
            cached.kept = True
            if not self.disk or self.in_memory + cached.size <= self.memory_room:
                cached.stays = True
                self.in_memory += cached.size
            if self.disk and not (cached.on_disk or cached.spilling) and (self.lasting or not cached.stays):
                cached.spilling = True
                out.append(Spill(sample, cached.ranges))
        for sample in change.drops.tolist():
            self._drop(sample, self._samples[sample], out)
        if self.announces and (len(change.holds) or len(change.drops)):
            out.append(AnnounceHeld(tuple(change.holds.tolist()), tuple(change.drops.tolist())))
        for sample in change.drops.tolist():
            self._let_go(sample, out)

    def _drop(self, sample: int, cached: CachedSample, out: list[KeeperAction]) -> None:
        """Hold a sample no more."""
        cached.kept = False
        if cached.stays:
            cached.stays = False
            self.in_memory -= cached.size
        if cached.on_disk and not self.lasting:
            cached.on_disk = False
            out.append(Unspill(sample, cached.ranges))

    def _lost_on_disk(self, sample: int, cached: CachedSample, out: list[KeeperAction]) -> None:
        """The disk has not got a sample that it should have, or could not take it."""
        cached.on_disk = False
        if cached.kept and not cached.stays:
            keys = np.array([sample], np.int64)
            self.cache.lost(keys, self._sizes(keys))
            cached.kept = False
            if self.announces:
                out.append(AnnounceHeld((), (sample,)))

    def _let_go(self, sample: int, out: list[KeeperAction]) -> None:
        """Evict and forget what nobody needs."""
        cached = self._samples.get(sample)
        if cached is None or not cached.is_idle:
            return
        if cached.here and not cached.stays:
            cached.here = False
            self.here_bytes -= cached.size
            out.append(Evict(sample))
        if not cached.kept and not cached.here:
            del self._samples[sample]


def unique(samples: Iterable[int]) -> Ints:
    """Return samples in order, each once. (NumPy's own function imports for a third of a second first.)"""
    return np.array(sorted(set(samples)), np.int64)
