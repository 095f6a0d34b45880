"""The ferry: a process that connects to remote workers and shows them to agents as workers of a remote pool.

It maps each loader's arena and writes into it what arrives. It never runs user code. One ferry serves all loaders of a machine's job; a
remote worker serves one loader at a time and stays connected for the next.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from penstock.node.service import Openings
from penstock.remote.boat import Boat
from penstock.remote.connect import Connector, WorkerAddress
from penstock.remote.file_desk import FileDesk
from penstock.remote.frames import NUMBER, Net
from penstock.remote.gateway_config import GatewayConfig
from penstock.remote.hire import Hire
from penstock.remote.permits import Permit
from penstock.wire import frames as wire
from penstock.wire.arena import Arena
from penstock.wire.frames import Channel, Msg

TICK_S = 0.25


@dataclass(eq=False)
class Berth:
    """One loader: the socket to its agent, its arena, and its remote workers."""

    channel: Channel
    arena: Arena
    selector: selectors.BaseSelector
    settings: bytes = b""
    digest: bytes = b""
    layouts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    boats: dict[int, Boat] = field(default_factory=dict)
    wanted: deque[int] = field(default_factory=deque)
    """Workers that the agent has started and that have no boat yet."""
    cluster: str = ""
    most: int | None = None
    """Remote workers that it wants; None: its agent has not said yet."""
    tls: bool = False
    """It uses workers that speak TLS, and no others."""
    refused: str = ""
    """Why its dataset cannot be loaded elsewhere."""
    on_refusal: Callable[[int], None] = lambda _: None
    plan: str = "samples"
    permit: Permit | None = None
    tail_text: bytes = b""
    """The last step, done here for samples that are cut; empty: none are."""
    cuts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Shape of the pixels of cut samples, by layout."""
    away: set[str] = field(default_factory=set)
    """Machines that cannot read the data: they are sent its bytes, or are not used."""

    @property
    def view(self) -> memoryview:
        return self.arena.view

    @cached_property
    def tail(self) -> Any:
        """The last step. It imports torch, which takes longer than a ferry may be silent; once a worker is there, `connect` has done so in a
        thread."""
        from penstock.remote.cut import tail_of

        return tail_of(self.tail_text)

    def may_use(self, boat: Boat) -> bool:
        """Say whether it waits for a worker such as this, whose machine can have the data."""
        if boat.about["tls"] != self.tls:  # guard: tls-apart
            return False
        reaches = boat.node not in self.away or self.permit is not None
        return bool(reaches and self.wanted and self.settings and not self.refused)

    def row(self, worker: int) -> memoryview:
        return self.arena.board.row(worker)

    def refuse(self, worker: int, why: str) -> None:
        if not self.refused:
            text = (
                f"remote workers cannot load the dataset ({why}): samples are prepared here. Its code must be importable there, "
                f"for example by Ray's runtime_env, or installed."
            )
            self.tell(-1, Msg.WARN, text.encode())
        self.refused = why
        self.on_refusal(worker)

    def learn(self, number: int, sizes: tuple[int, ...], blob: bytes) -> None:
        """Remember a layout that our agent sends, and how its samples are cut."""
        self.layouts[number] = sizes
        if self.tail_text:
            from penstock.remote.cut import cut_layout
            from penstock.wire.layout_blobs import TEXT
            from penstock.wire.layout_text import unpack

            cut = cut_layout(unpack(blob[1:]), self.tail.dtype) if blob[:1] == TEXT else None
            if cut is not None:
                self.cuts[number] = cut.leaves[0].shape

    def plan_for(self, boat: Boat) -> str:
        return "bytes" if boat.node in self.away else self.plan

    def use(self, plan: str) -> None:
        self.plan = plan
        for worker, boat in self.boats.items():
            self.instruct(worker, boat)

    def instruct(self, worker: int, boat: Boat) -> None:
        """Say by which plan a worker works."""
        plan = self.plan_for(boat)
        boat.use(plan)
        self.tell(worker, Net.PLAN, plan.encode())

    def unreached(self, worker: int, why: str) -> None:
        """A machine cannot read the data: read it here from now on, or prepare it here."""
        boat, first = self.boats[worker], self.boats[worker].node not in self.away
        self.away.add(boat.node)
        if first:
            instead = "bytes are read here instead" if self.permit else "samples are prepared here"
            self.tell(-1, Msg.WARN, f"the data is not reachable from {boat.node} ({why}): {instead}".encode())
        for number, other in self.boats.items():
            if other.node != boat.node:
                continue
            if self.permit is None:
                self.tell(number, Net.UNFIT)
            elif first:
                self.instruct(number, other)

    def tell(self, worker: int, kind: int, *chunks: bytes) -> None:
        self.channel.post(kind, NUMBER.pack(worker), *chunks)  # type: ignore[arg-type]
        if self.channel.clogged:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self.selector.modify(self.channel.sock, both, self.selector.get_key(self.channel.sock).data)


class Ferry:
    """Serves berths as they are opened: each with facts as JSON, a stream to its agent, and its arena's descriptor."""

    def __init__(self, openings: Openings) -> None:
        self.openings = openings
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        self.berths: list[Berth] = []
        self.idle: list[Boat] = []
        self.boats: list[Boat] = []
        self.known: set[WorkerAddress] = set()
        self.unsaid: deque[str] = deque(maxlen=16)
        self.connector = Connector()
        self.landed = 0
        """Bytes from workers that have ended."""
        self.desk = FileDesk(self.selector)
        self.running = True
        self.hires: dict[str, Hire] = {}
        """Clusters, by their gateway's settings."""
        self.selector.register(openings.fileno(), selectors.EVENT_READ, lambda _: self._on_opening())
        self.selector.register(self.connector.ready, selectors.EVENT_READ, lambda _: self._on_connected())

    def run(self) -> None:
        next_s = 0.0
        while self.running:
            for key, mask in self.selector.select(TICK_S):
                key.data(mask)
            now = time.monotonic()
            if now >= next_s:
                next_s = now + TICK_S
                for boat in list(self.boats):
                    boat.look_after(now)
                for berth in self.berths:
                    berth.tell(-1, Net.ALIVE, self._account(berth))

    def _account(self, berth: Berth) -> bytes:
        """Return what this process has done, and for this loader."""
        told = {
            "pid": os.getpid(),
            "cpu_ns": time.process_time_ns(),
            "bytes": self.landed + sum(boat.received for boat in self.boats),
            "workers": {worker: boat.brought for worker, boat in berth.boats.items()},
        }
        return json.dumps(told).encode()

    # ---- loaders

    def _on_opening(self) -> None:
        opening = self.openings.take()
        if opening is None:
            self.running = False  # the node process is gone
            return
        facts, sock = json.loads(opening.hello), opening.stream
        sock.setblocking(False)
        arena = Arena(opening.fds[0], facts["size"], facts["workers"])
        berth = Berth(
            Channel(sock),
            arena,
            self.selector,
            cluster=json.dumps([facts.get("gateway"), facts.get("actors")]),
        )
        berth.on_refusal = lambda worker: self._free(berth, worker)
        berth.most, berth.tls = facts.get("most"), facts.get("tls", False)
        self.berths.append(berth)
        self.selector.register(sock, selectors.EVENT_READ, lambda mask: self._on_agent(berth, mask))
        differs = facts.get("differs", "error")
        for address in facts.get("addresses", ()):
            self._meet(WorkerAddress(**address), differs)
        if facts.get("gateway") and berth.cluster not in self.hires:
            config = GatewayConfig(**facts["gateway"])
            met = partial(self._meet, differs=differs)
            self.hires[berth.cluster] = Hire(config, self.selector, met, self._warn, facts["actors"])
        self._hire()

    def _meet(self, address: WorkerAddress, differs: str) -> None:
        if address not in self.known:  # its key is good for one connection
            self.known.add(address)
            self.connector.connect(address, differs=differs)

    def _hire(self) -> None:
        """Want as many workers of each cluster as its loaders do. Keep the last number while nobody is there, or has not said: the next epoch
        will."""
        for cluster, hire in self.hires.items():
            wishes = [berth.most for berth in self.berths if berth.cluster == cluster]
            wanted = sum(wish or 0 for wish in wishes)
            hire.want(max(wanted, hire.wanted) if not wishes or None in wishes else wanted)

    def _on_agent(self, berth: Berth, mask: int) -> None:
        if mask & selectors.EVENT_WRITE and berth.channel.flush():
            self.selector.modify(
                berth.channel.sock, selectors.EVENT_READ, self.selector.get_key(berth.channel.sock).data
            )
        if not mask & selectors.EVENT_READ:
            return
        frames = berth.channel.receive(wait=False)
        if frames is None:
            self._cast_off(berth)
            return
        for kind, payload in frames:
            (worker,) = NUMBER.unpack_from(payload)
            self._on_agent_frame(berth, kind, worker, payload[NUMBER.size :])

    def _on_agent_frame(self, berth: Berth, kind: int, worker: int, payload: bytes) -> None:
        if kind == Net.SPEC:
            berth.settings, berth.digest = payload, hashlib.sha256(payload).digest()
        elif kind == Net.WANT:
            (berth.most,) = NUMBER.unpack(payload)
            self._hire()
        elif kind == Net.PLAN:
            berth.use(payload.decode())
        elif kind == Net.TAIL:
            berth.tail_text = payload
        elif kind == Net.PERMIT:
            berth.permit = Permit.of(payload.decode())
        elif kind == Net.START:
            berth.wanted.append(worker)
            self._board()
        elif worker in berth.boats:
            boat = berth.boats[worker]
            if kind == Msg.STOP:
                self._free(berth, worker)
                berth.tell(worker, Net.ENDED, b"it was asked to end")
            elif kind == Msg.LAYOUT:
                (number,) = wire.LAYOUT.unpack_from(payload)
                sizes, blob = wire.split_sizes(payload[wire.LAYOUT.size :])
                berth.learn(number, sizes, blob)
                boat.deliver(kind, wire.LAYOUT.pack(number) + blob)
            else:
                boat.deliver(kind, payload)
        elif kind == Msg.STOP:
            with contextlib.suppress(ValueError):
                berth.wanted.remove(worker)
            berth.tell(worker, Net.ENDED, b"it was asked to end")

    def _cast_off(self, berth: Berth) -> None:
        """The agent is gone: its remote workers are free for others."""
        self.selector.unregister(berth.channel.sock)
        for worker in list(berth.boats):
            self._free(berth, worker)
        self.berths.remove(berth)
        berth.channel.close()
        berth.arena.close()
        self._board()

    def _free(self, berth: Berth, worker: int) -> None:
        boat = berth.boats.pop(worker)
        boat.leave()
        self.idle.append(boat)

    # ---- remote workers

    def _on_connected(self) -> None:
        for outcome in self.connector.outcomes():
            if isinstance(outcome, str):
                self._warn(outcome)
                continue
            sock, about = outcome
            boat = Boat(sock, about, self.selector, self.desk)
            boat.on_end = self._on_boat_end
            self.boats.append(boat)
            self.idle.append(boat)
        self._board()

    def _warn(self, text: str) -> None:
        """Tell all loaders, or the next that comes."""
        self.unsaid.append(text)
        for berth in self.berths:
            for line in self.unsaid:
                berth.tell(-1, Msg.WARN, line.encode())
        if self.berths:
            self.unsaid.clear()

    def _board(self) -> None:
        """Give idle remote workers to loaders that wait for some, in turn."""
        while pair := next(self._matches(), None):
            boat, berth = pair
            self.idle.remove(boat)
            worker = berth.wanted.popleft()
            berth.boats[worker] = boat
            berth.tell(worker, Net.BOARDED, boat.host.encode())
            boat.board(berth, worker, berth.settings, berth.digest)
            berth.instruct(worker, boat)
            self.berths.remove(berth)
            self.berths.append(berth)

    def _matches(self) -> Iterator[tuple[Boat, Berth]]:
        """Idle workers and loaders that wait for such a one."""
        return ((boat, berth) for berth in self.berths for boat in self.idle if berth.may_use(boat))

    def _on_boat_end(self, boat: Boat, why: str) -> None:
        self.boats.remove(boat)
        self.landed += boat.received
        if boat in self.idle:
            self.idle.remove(boat)
            self._warn(f"the worker on {boat.host} was lost: {why}")
        for berth in self.berths:
            for worker, other in list(berth.boats.items()):
                if other is boat:
                    del berth.boats[worker]
                    berth.tell(worker, Net.ENDED, why.encode())


def main(openings: Openings) -> None:
    """Be the ferry: a service of the node process."""
    ferry = Ferry(openings)
    ferry.run()
    for hire in ferry.hires.values():
        hire.close()
    os._exit(0)  # threads that connect would hold up the end
