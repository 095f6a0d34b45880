"""A simulated machine: a real keeper, and memory, disk and source that may fail."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from penstock.cache import keeper_actions as kp
from penstock.cache.keeper import Keeper
from penstock.plan.next_use import UseWindow
from penstock.policy.caching import POLICIES, NodeCache
from penstock.policy.holdings import Directory
from penstock.sim.cache_audit import audit_at_rest, audit_keeper
from penstock.sim.cache_peers import FakePeers
from penstock.sim.cache_schedule import CacheSetting
from penstock.sim.memory import Violation

READ_S, DISK_S, WRITE_S, BACK_S = 5.0, 2.0, 3.0, 15.0
MOST_ACTIONS = 8
"""Actions per sample and event."""


class StreamBatch(NamedTuple):
    """A batch that was asked for by a rank's stream."""

    stream: int
    step: int


class AskOf(NamedTuple):
    batch: StreamBatch
    samples: list[int]
    tell: Callable[[StreamBatch, int], None]


class OverOf(NamedTuple):
    batch: StreamBatch
    used: bool


class EndOf(NamedTuple):
    """A stream has ended, with the rank."""

    stream: int


class PlanUses:
    """The next uses by the plan of this node."""

    def __init__(self, world: CacheSetting, node: int) -> None:
        self._plan, self._node = world.plan, node

    def add(self, step: int, samples: Any) -> None:
        """Nothing new: the plan knows."""

    def next_use(self, samples: Any, after: int) -> Any:
        return self._plan.next_use(samples, self._node, after)


class CacheMachine:
    """Performs what its keeper says. `life` counts its services: what was begun by an earlier one is heard by nobody."""

    def __init__(self, world: CacheSetting, node: int, group: Sequence[CacheMachine]) -> None:
        self.world, self.node, self._group = world, node, group
        self.life, self.up = 0, True
        self._streams = node * 1_000_000
        self.on_disk: set[int] = set()
        """Samples that its disk has."""
        self._begin()

    def _begin(self) -> None:
        world, schedule = self.world, self.world.schedule
        self.memory: dict[int, int] = {}
        """Bytes of samples that are there."""
        self.reserved: dict[int, int] = {}
        self.in_use: dict[int, Counter[Hashable]] = defaultdict(Counter)
        """Batches and peers that use each sample."""
        self.fetched: set[int] = set()
        """Samples that somebody was asked for and has not answered."""
        self.batches: dict[StreamBatch, AskOf] = {}
        self.told: dict[StreamBatch, set[int]] = {}
        self.spilling: Counter[int] = Counter()
        if not schedule.lasting:
            self.on_disk.clear()
        rules = POLICIES[schedule.policy]
        homes = None if world.homes is None else world.homes.copy()
        directory = Directory(schedule.samples, schedule.nodes, homes)
        self.keeper = Keeper(
            NodeCache(self.node, room_bytes=schedule.room_bytes, rules=rules, directory=directory),
            PlanUses(world, self.node) if schedule.planned else UseWindow(),
            memory_room=schedule.memory_bytes - schedule.ring_bytes,
            memory_bytes=schedule.memory_bytes,
            typical_bytes=sum(world.sizes) // len(world.sizes),
            disk=schedule.disk > 0,
            lasting=schedule.lasting,
            announces=not rules.homes and schedule.nodes > 1,
        )
        self.peers = FakePeers(world, self, self._group)

    # ---- its ranks

    def open_stream(self) -> int:
        self._streams += 1
        return self._streams

    def receive(self, life: int, message: AskOf | OverOf | EndOf) -> None:
        if life != self.life or not self.up:
            return
        match message:
            case AskOf(batch, samples):
                self.batches[batch], self.told[batch] = message, set()
                ranges = [ranges_of(sample) for sample in samples]
                self.happen("ask", batch, batch.step, batch.stream, samples, ranges)
            case OverOf(batch, used):
                self._over(batch, used=used)
            case EndOf(stream):
                mine = [batch for batch in self.batches if batch.stream == stream]
                self.world.rng.shuffle(mine)
                for batch in mine:
                    self._over(batch, used=False)

    def _over(self, batch: StreamBatch, *, used: bool) -> None:
        asked, told = self.batches.pop(batch), self.told.pop(batch)
        if used and len(told) < len(asked.samples):
            raise Violation(f"{batch} is over, and was told of {sorted(told)} alone")
        for users in self.in_use.values():
            del users[batch]
        self.happen("over", batch, used=used)

    def _tell(self, batch: StreamBatch, ordinal: int) -> None:
        if batch not in self.batches:
            raise Violation(f"{batch} is told of a sample, and is not open")
        if ordinal in self.told[batch] or ordinal >= len(self.batches[batch].samples):
            raise Violation(f"{batch} is told of its sample {ordinal} twice")
        self.told[batch].add(ordinal)
        self.world.agenda.after(
            self.world.later(0.2), self._tell_rank, self.life, self.batches[batch].tell, batch, ordinal
        )

    def _tell_rank(
        self, life: int, tell: Callable[[StreamBatch, int], None], batch: StreamBatch, ordinal: int
    ) -> None:
        if life == self.life:
            tell(batch, ordinal)

    # ---- its keeper

    def happen(self, event: str, *args: Any, **kwargs: Any) -> None:
        actions = getattr(self.keeper, event)(*args, **kwargs) or []
        if len(actions) > MOST_ACTIONS * (self.world.schedule.samples + 10):
            raise Violation(f"{event} made {len(actions)} actions")
        self.perform(actions)
        if self.world.audits:
            audit_keeper(self)

    def soon(self, mean_s: float, call: Callable[..., None], *args: Any) -> None:
        """Make a call later, if this service is still there."""
        self.world.agenda.after(self.world.later(mean_s), self._if_alive, self.life, call, *args)

    def _if_alive(self, life: int, call: Callable[..., None], *args: Any) -> None:
        if life == self.life and self.up:
            call(*args)

    def perform(self, actions: Sequence[kp.KeeperAction]) -> None:
        asked: dict[int, list[kp.AskPeer]] = defaultdict(list)
        for action in actions:
            match action:
                case kp.Land(batch, ordinal, sample, lengths):
                    self._must_be_there(sample, lengths)
                    if self.batches[batch].samples[ordinal] != sample:
                        raise Violation(f"{batch} is told of sample {sample} where it wants another")
                    self.in_use[sample][batch] += 1
                    self._tell(batch, ordinal)
                case kp.LeaveUnread(batch, ordinal):
                    self._tell(batch, ordinal)
                    self.world.served[batch.step // self.world.plan.steps] += 1
                    self.world.tally["unread"] += 1
                case kp.ReadSource(sample, _, step, _):
                    self._note_fetch(sample)
                    self.world.served[step // self.world.plan.steps] += 1
                    self.soon(READ_S, self._read, sample, "source")
                case kp.ReadDisk(sample, _):
                    self._note_fetch(sample)
                    self.soon(DISK_S, self._read, sample, "disk")
                case kp.AskPeer():
                    self._note_fetch(action.sample)
                    asked[action.node].append(action)
                case kp.Give(peer, sample, lengths):
                    self._must_be_there(sample, lengths)
                    self.peers.give(peer, sample)
                case kp.Refuse(peer, sample):
                    self.peers.refuse(peer, sample)
                case kp.Evict(sample):
                    self._evict(sample)
                case kp.Spill(sample, _):
                    self._spill(sample)
                case kp.Unspill(sample, _):
                    self.soon(WRITE_S, self.on_disk.discard, sample)
                case kp.AnnounceHeld(holds, drops):
                    self.peers.announce(holds, drops)
        for node, wanted in asked.items():
            self.peers.ask(node, wanted)

    def _note_fetch(self, sample: int) -> None:
        if sample in self.fetched or sample in self.memory:
            raise Violation(f"sample {sample} is fetched, and is there or on its way")
        self.fetched.add(sample)

    def _must_be_there(self, sample: int, lengths: Sequence[int]) -> None:
        if self.memory.get(sample) != sum(lengths):
            raise Violation(f"sample {sample} is told of, and is not in memory")

    # ---- memory

    @property
    def taken_bytes(self) -> int:
        return sum(self.memory.values()) + sum(self.reserved.values())

    def reserve(self, sample: int) -> bool:
        size = self.world.sizes[sample]
        if sample in self.memory or sample in self.reserved:
            raise Violation(f"sample {sample} is brought twice")
        if self.taken_bytes + size > self.world.schedule.memory_bytes or self.world.goes_wrong("refused"):
            self.world.tally["no room"] += 1
            return False
        self.reserved[sample] = size
        return True

    def commit(self, sample: int) -> None:
        self.memory[sample] = self.reserved.pop(sample)

    def _evict(self, sample: int) -> None:
        if sample not in self.memory:
            raise Violation(f"sample {sample} is evicted, and is not there")
        if self.in_use[sample].total() or self.spilling[sample]:
            raise Violation(f"sample {sample} is evicted in use: {self.in_use[sample]}")
        del self.memory[sample]
        self.world.tally["evicted"] += 1

    # ---- source and disk

    def _read(self, sample: int, where: str) -> None:
        """Bytes are there, or are not."""
        missing = where == "disk" and sample not in self.on_disk
        if missing or self.world.goes_wrong(f"{where} failed"):
            self.answered(sample, "did_not_come")
        elif not self.reserve(sample):
            self.answered(sample, "no_room")
        else:
            self.soon(0.5, self.came, sample)

    def came(self, sample: int) -> None:
        self.commit(sample)
        self.answered(sample, "came", (self.world.sizes[sample],))

    def answered(self, sample: int, event: str, *args: Any) -> None:
        self.fetched.remove(sample)
        self.happen(event, sample, *args)

    def _spill(self, sample: int) -> None:
        if sample not in self.memory:
            raise Violation(f"sample {sample} is to be spilled, and is not there")
        if self.spilling[sample]:
            raise Violation(f"sample {sample} is spilled twice")
        self.spilling[sample] += 1
        self.soon(WRITE_S, self._spilled, sample)

    def _spilled(self, sample: int) -> None:
        self.spilling[sample] -= 1
        ok = not self.world.goes_wrong("disk failed")
        if ok:
            self.on_disk.add(sample)
        self.happen("spilled", sample, ok=ok)

    # ---- deaths

    def die(self) -> bool:
        """Lose all, and begin again later."""
        if not self.up:
            return False
        self.up = False
        self.life += 1
        for other in self._group:
            other.peers.lose(self.node)
        self._begin()
        self.world.agenda.after(self.world.later(BACK_S), self._come_back)
        return True

    def _come_back(self) -> None:
        self.up = True

    def must_be_at_rest(self) -> None:
        audit_at_rest(self)


def ranges_of(sample: int) -> kp.Ranges:
    return (("data", sample, sample + 1),)
