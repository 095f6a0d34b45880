"""A simulated machine's dealings with the others: connections that are lost, samples that are refused, messages in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.cache.keeper_actions import AskPeer, Ranges
from penstock.sim.cache_schedule import CacheSetting

MESSAGE_S, GOT_S = 0.5, 1.0


class PeerWire(NamedTuple):
    """A connection from an asker to a home. A new one has another number."""

    asker: int
    home: int
    number: int


class PeeringMachine(Protocol):
    """A machine, as its peers' side and others' know it."""

    node: int
    life: int
    up: bool
    in_use: dict[int, Counter[Hashable]]
    peers: FakePeers

    def happen(self, event: str, *args: Any, **kwargs: Any) -> None: ...
    def soon(self, mean_s: float, call: Callable[..., None], *args: Any) -> None: ...
    def answered(self, sample: int, event: str, *args: Any) -> None: ...
    def reserve(self, sample: int) -> bool: ...
    def came(self, sample: int) -> None: ...


class FakePeers:
    """Both ends of a machine: as asker and as home."""

    def __init__(self, world: CacheSetting, machine: PeeringMachine, group: Sequence[PeeringMachine]) -> None:
        self._world, self._machine, self._group = world, machine, group
        self._wires: dict[int, PeerWire] = {}
        """Connections to homes."""
        self._open: dict[int, PeerWire] = {}
        """Samples asked for."""
        self._gives: dict[object, tuple[PeerWire, int]] = {}
        """Samples being sent. Keys are theirs alone."""
        self._askers: dict[int, PeerWire] = {}
        """Newest connection from each asker."""
        self._made = 0

    def _other(self, node: int) -> PeeringMachine:
        return self._group[node]

    def _is_up(self, wire: PeerWire) -> bool:
        """Whether what is sent on a connection arrives."""
        return self._other(wire.asker).peers._wires.get(wire.home) == wire

    # ---- as asker

    def ask(self, node: int, wanted: Sequence[AskPeer]) -> None:
        machine = self._machine
        wire = self._connected(node)
        if wire is None:
            for each in wanted:
                machine.soon(0.1, machine.answered, each.sample, "did_not_come")
            return
        self._open |= {each.sample: wire for each in wanted}
        asked = [(each.sample, each.ranges) for each in wanted]
        self._other(node).soon(MESSAGE_S, self._other(node).peers.asked, wire, wanted[0].step, asked)

    def _connected(self, node: int) -> PeerWire | None:
        if not self._other(node).up or not self._world.sees(self._machine.node, node):
            return None
        if node not in self._wires:
            self._made += 1
            number = self._made + 1000 * self._machine.life
            self._wires[node] = PeerWire(self._machine.node, node, number)
        return self._wires[node]

    def _take(self, wire: PeerWire, sample: int, token: object) -> None:
        """A sample's bytes arrive."""
        if not self._is_up(wire):
            return
        machine, home = self._machine, self._other(wire.home)
        home.soon(GOT_S, home.peers.end_give, token)
        if self._open.get(sample) != wire:
            return
        del self._open[sample]
        if self._world.goes_wrong("damaged"):
            machine.answered(sample, "did_not_come")
        elif not machine.reserve(sample):
            machine.answered(sample, "no_room")
        else:
            machine.soon(0.5, machine.came, sample)

    def _refused(self, wire: PeerWire, sample: int) -> None:
        if self._is_up(wire) and self._open.get(sample) == wire:
            del self._open[sample]
            self._machine.answered(sample, "did_not_come")

    # ---- as home

    def asked(self, wire: PeerWire, step: int, wanted: Sequence[tuple[int, Ranges]]) -> None:
        taken = []
        for sample, ranges in wanted:
            if self._world.goes_wrong(
                "peer refused"
            ):  # more was asked for than a connection may have waiting
                self.refuse(wire, sample)
            else:
                taken.append((sample, ranges))
        if taken:
            self._machine.happen("wanted", wire, step, taken)

    def give(self, wire: PeerWire, sample: int) -> None:
        token = object()
        self._gives[token] = wire, sample
        self._machine.in_use[sample][wire] += 1
        if self._is_up(wire):
            asker = self._other(wire.asker)
            asker.soon(MESSAGE_S, asker.peers._take, wire, sample, token)
        else:
            self._machine.soon(0.1, self.end_give, token)

    def end_give(self, token: object) -> None:
        given = self._gives.pop(token, None)
        if given is not None:
            wire, sample = given
            self._machine.in_use[sample][wire] -= 1
            self._machine.happen("given", sample)

    def refuse(self, wire: PeerWire, sample: int) -> None:
        if self._is_up(wire):
            asker = self._other(wire.asker)
            asker.soon(MESSAGE_S, asker.peers._refused, wire, sample)

    # ---- connections

    def lose(self, node: int) -> None:
        """Lose the connections with another machine, both ways."""
        machine = self._machine
        wire = self._wires.pop(node, None)
        if wire is not None:
            lost = [sample for sample, asked in self._open.items() if asked == wire]
            for sample in lost:
                del self._open[sample]
                machine.soon(0.1, machine.answered, sample, "did_not_come")
        for token, (given, _) in list(self._gives.items()):
            if given.asker == node:
                machine.soon(0.1, self.end_give, token)
        for left in {given for given, _ in self._gives.values() if given.asker == node}:
            if self._world.rng.random() < 0.5:
                machine.soon(0.1, machine.happen, "peer_left", left)

    # ---- what others hold

    def announce(self, holds: tuple[int, ...], drops: tuple[int, ...]) -> None:
        for other in self._group:
            if other.node != self._machine.node and self._world.sees(other.node, self._machine.node):
                call: Callable[..., None] = other.happen
                other.soon(MESSAGE_S, call, "announced", self._machine.node, holds, drops)
