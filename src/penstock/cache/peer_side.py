"""One dataset's dealings with the caches of other machines: performs what the keeper says of peers, and tells it what they say."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from penstock.cache.join_facts import GroupPlan, JoinFacts
from penstock.cache.keeper_actions import AskPeer, Ranges
from penstock.cache.keys import sample_key
from penstock.cache.memory import MemoryTier
from penstock.cache.peer_events import (
    Came,
    NotCame,
    PeerAsker,
    PeerBack,
    PeerEvent,
    PeerHolds,
    PeerLost,
    PeerWants,
)
from penstock.cache.peers import PeerPort
from penstock.errors import PenstockError

log = logging.getLogger("penstock")


MEET_S = 3.0
"""How long ranks wait for their caches to reach each other: what is asked for before comes from the source."""
NO_ROOM = "there is no room for it"
"""Why a sample does not come that the peer would have sent."""


class PeerUser(Protocol):
    """The dataset, as its peers' side knows it. Called by the service's main thread."""

    def came_from_peer(self, sample: int, lengths: tuple[int, ...]) -> None: ...

    def not_come(self, sample: int) -> None: ...

    def no_room(self, sample: int) -> None: ...

    def peer_wants(self, peer: PeerAsker, step: int, samples: Sequence[tuple[int, Ranges]]) -> None: ...

    def given(self, sample: int) -> None: ...

    def peer_holds(self, node: int, holds: Sequence[int], drops: Sequence[int], *, anew: bool) -> None: ...

    def announced_samples(self) -> list[int] | None:
        """Return what is held here; None if others can tell by themselves."""
        ...


class PeerSide:
    """Listens at once, if there are other machines; asks them once they are known."""

    def __init__(
        self, facts: JoinFacts, tier: MemoryTier, user: PeerUser, post: Callable[[Callable[[], None]], None]
    ) -> None:
        self._scope, self._tier, self._user, self._post = bytes.fromhex(facts.scope), tier, user, post
        self._node = facts.node
        self._port: PeerPort | None = None
        self._asked: dict[int, list[AskPeer]] = defaultdict(list)
        self._unmet: set[int] = set()
        """Machines that were never reached."""
        self._when_met: list[Callable[[], None]] = []
        if facts.listen:
            self._port = self._opened(facts)

    def _opened(self, facts: JoinFacts) -> PeerPort | None:
        """Listen, at the port of an earlier service of ours if that is possible: others know it."""
        trouble: Exception | None = None
        for port in dict.fromkeys((facts.port, 0)):
            try:
                return PeerPort(
                    facts.listen,
                    facts.secret,
                    node=facts.node,
                    room=self._tier,
                    post=lambda event: self._post(partial(self._on_event, event)),
                    port=port,
                    tls=facts.cache.tls,
                )
            except (OSError, PenstockError) as exc:
                trouble = exc
        log.warning("cache: other machines cannot reach this one: %s", trouble)
        return None

    @property
    def address(self) -> str:
        """Where other machines find this one; "": nowhere."""
        return "" if self._port is None else self._port.address

    def join(self, plan: GroupPlan) -> None:
        """Ask the job's other machines from now on."""
        if self._port is not None:
            for node, address in enumerate(plan.addresses):
                if node != self._node and address:
                    self._unmet.add(node)
                    self._port.join(node, address)
            timer = threading.Timer(MEET_S, self._post, [self._give_up_meeting])
            timer.daemon = True
            timer.start()

    def when_met(self, call: Callable[[], None]) -> None:
        """Make a call once all machines were reached, or some time has passed."""
        if self._unmet:
            self._when_met.append(call)
        else:
            call()

    def _met(self, nodes: set[int]) -> None:
        self._unmet -= nodes
        if not self._unmet:
            calls, self._when_met = self._when_met, []
            for call in calls:
                call()

    def _give_up_meeting(self) -> None:
        self._met(set(self._unmet))

    # ---- what the keeper says

    def ask(self, wanted: AskPeer) -> None:
        """Ask a peer, with all others of the same batch (`flush`)."""
        self._asked[wanted.node].append(wanted)

    def flush(self) -> None:
        if not self._asked:
            return
        asked, self._asked = self._asked, defaultdict(list)
        for node, wanted in asked.items():
            if self._port is None:
                for each in wanted:
                    self._post(partial(self._user.not_come, each.sample))
                continue
            samples = [(each.sample, list(each.ranges)) for each in wanted]
            self._port.ask(node, self._scope, samples, min(each.step for each in wanted))

    def announce(self, holds: Sequence[int], drops: Sequence[int]) -> None:
        """Tell other machines what this one holds from now on, and what no more."""
        if self._port is not None:
            self._port.announce(self._scope, holds, drops)

    def _tell_all(self, node: int) -> None:
        """Tell a machine that is reached all that this one holds."""
        held = self._user.announced_samples()
        if held is not None and self._port is not None:
            self._port.announce(self._scope, held, (), to=node)

    def give(self, peer: Any, sample: int, lengths: tuple[int, ...]) -> None:
        """Send a sample that is in memory; it is leased until it is sent."""
        key, owner = sample_key(self._scope, sample), object()
        (place,) = self._tier.lookup([key], owner)
        check = self._tier.check_of(key)
        if place is None or check is None:
            self._given(owner, sample)
            self.refuse(peer, sample)
            return
        done = partial(self._post, partial(self._given, owner, sample))
        peer.give(self._scope, sample, lengths, check, self._tier.fd, place.offset, done)

    def _given(self, owner: object, sample: int) -> None:
        self._tier.leave(owner)
        self._user.given(sample)

    def refuse(self, peer: Any, sample: int) -> None:
        peer.refuse(self._scope, sample)

    # ---- what peers say

    def _on_event(self, event: PeerEvent) -> None:
        match event:
            case Came(_, _, sample, lengths):
                self._user.came_from_peer(sample, tuple(lengths))
            case NotCame(_, _, samples, why):
                log.debug("cache: %d samples do not come from another machine: %s", len(samples), why)
                told = self._user.no_room if why == NO_ROOM else self._user.not_come
                for sample in samples:
                    told(sample)
            case PeerWants(link, scope, step, samples):
                if scope == self._scope:
                    self._user.peer_wants(link, step, samples)
                else:
                    for sample, _ in samples:
                        link.refuse(scope, sample)
            case PeerBack(node):
                self._met({node})
                self._tell_all(node)
            case PeerHolds(node, scope, holds, drops, anew):
                if scope == self._scope:
                    self._user.peer_holds(node, holds, drops, anew=anew)
            case PeerLost(node, why):
                log.warning(
                    "cache: machine %d is asked for nothing more until it is back (%s): its samples come from the source",
                    node,
                    why,
                )

    def stats(self) -> dict[int, dict[str, float]]:
        return {} if self._port is None else self._port.stats()

    def close(self) -> None:
        if self._port is not None:
            self._port.close()
