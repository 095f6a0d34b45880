"""The manager of a machine's cores: tells each loader how many workers may begin tasks. A service of the node process (`penstock.node`).

Rule 1: whoever has joined has a say until its stream ends. Then its own cores go, and what it has borrowed is back at once: nobody is asked.
Rule 2: who may use how many cores is said by `policy/deciding.py`; here are streams, clocks and books.
Rule 3: no stream can block it, and one that sends nonsense is closed. If the manager ends, every loader uses its own workers.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

from penstock.errors import ConfigError
from penstock.lending.frames import (
    GRANT,
    MOST_BYTES,
    BadLendingFrame,
    LenderFacts,
    LendMsg,
    Report,
    pack_stats,
)
from penstock.measure.host import cpu_quota
from penstock.node.messages import close_all
from penstock.node.service import Opening, Openings
from penstock.policy.deciding import BEAT_S, Deciding, Lender
from penstock.policy.lending import RULES
from penstock.policy.loans import Loans, Standing
from penstock.policy.stragglers import CrewBook, CrewMember, RankSums, slowest_of
from penstock.wire.frames import Channel
from penstock.wire.watching import watch

RULE = "PENSTOCK_LENDING_RULE"
"""Of benchmarks: another rule than ours."""
IDLE_S = 60.0
"""It looks around so often while nobody has joined."""
MOST_CREWS = 16
"""Crews whose numbers are kept, those noted last. A crew's name follows from its data set, so they are few."""


@dataclass(slots=True, eq=False)
class LenderStream:
    """A loader's agent, or who asks for numbers."""

    number: int
    channel: Channel
    facts: LenderFacts | None = None
    """None: it has not joined, or only asks for numbers."""
    sums: RankSums = field(default_factory=RankSums)
    heard_s: float = 0.0


class Manager:
    def __init__(self, rule: str = "evened", clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.selector = selectors.DefaultSelector()
        self._streams: dict[int, LenderStream] = {}
        self.deciding = Deciding(RULES[rule], clock(), quota=cpu_quota())
        self._loans = Loans()
        self._crews: dict[str, CrewBook] = {}
        self._next = 0
        self._over = False
        self._settled_s = self._quota_s = self._began_s = clock()

    def run(self, openings: Openings) -> None:
        """Serve until the node is gone."""
        self.selector.register(openings, selectors.EVENT_READ, lambda _: self._take(openings))
        while not self._over:
            self.turn(min(IDLE_S, max(0.0, self.deciding.due_s - self._clock())))

    def turn(self, within_s: float) -> None:
        """Hear what comes within this time, and answer."""
        for key, mask in self.selector.select(within_s):
            key.data(mask)
        now_s = self._clock()
        if now_s >= self.deciding.due_s:
            self._decide(now_s)

    # ---- decisions

    def _decide(self, now_s: float) -> None:
        if now_s >= self._quota_s + BEAT_S:
            self._quota_s, self.deciding.quota = now_s, cpu_quota()
        was_calm = self.deciding.calm
        for number, workers in self.deciding.decide(now_s).items():
            grant = GRANT.pack(workers, self.deciding.lenders[number].own)
            if self._post(self._streams[number], LendMsg.GRANT, grant):
                self.deciding.told(number, workers, now_s)
        if not (was_calm and self.deciding.calm) or now_s >= self._settled_s + BEAT_S:
            self._settle(now_s)

    def _settle(self, now_s: float) -> None:
        """Bring the books up to date."""
        self._settled_s = now_s
        reported = self.deciding.reported
        self._loans.settle(
            now_s, {number: Standing(one.own, one.allowed) for number, one in reported.items()}
        )
        crews: dict[str, dict[int, CrewMember]] = {}
        for number, one in reported.items():
            stream = self._streams[number]
            if stream.facts is not None and stream.facts.crew:
                member = CrewMember(stream.facts.rank, one.own, stream.sums)
                crews.setdefault(stream.facts.crew, {})[number] = member
        for crew, members in crews.items():
            book = self._crews.pop(crew, None) or CrewBook()
            book.note(members)
            self._crews[crew] = book  # the last one now
        while len(self._crews) > MOST_CREWS:
            del self._crews[next(iter(self._crews))]

    # ---- streams

    def _take(self, openings: Openings) -> None:
        opening = openings.take()
        if opening is None:
            self._over = True
        else:
            self.welcome(opening)

    def welcome(self, opening: Opening) -> None:
        close_all(opening.fds)
        opening.stream.setblocking(False)
        one = LenderStream(self._next, Channel(opening.stream, MOST_BYTES))
        self._next += 1
        self._streams[one.number] = one
        self.selector.register(one.channel, selectors.EVENT_READ, partial(self._hear, one))

    def _hear(self, one: LenderStream, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                one.channel.flush()
                watch(self.selector, one.channel)
            frames = one.channel.receive(wait=False) if mask & selectors.EVENT_READ else []
            if frames is None:
                self._drop(one)
                return
            for kind, payload in frames:
                self._on_frame(one, kind, payload)
        except (OSError, ValueError):  # guard: lender-talks-nonsense
            self._drop(one)

    def _on_frame(self, one: LenderStream, kind: int, payload: bytes) -> None:
        one.heard_s = self._clock()
        self.deciding.hear(one.number, one.heard_s)
        if kind == LendMsg.JOIN:
            facts = one.facts = LenderFacts.unpack(payload)
            self.deciding.join(one.number, auto=facts.auto, cores=frozenset(facts.cores), lends=facts.lends)
        elif kind == LendMsg.REPORT and one.facts is not None:
            # Loaders that are in step with no other are told apart by their numbers.
            report = Report.unpack(payload, one.facts.crew or f"alone {one.number}")
            one.sums = report.sums
            self.deciding.report(one.number, report.view, one.heard_s)
        elif kind == LendMsg.STATS:
            self._post(one, LendMsg.STATED, pack_stats(self.stats()))
        else:
            raise BadLendingFrame(f"a message of kind {kind} is not expected")

    def _post(self, one: LenderStream, kind: LendMsg, payload: bytes) -> bool:
        """Tell a loader something, unless it has not read what it was told before."""
        if one.channel.clogged:  # guard: lender-does-not-read
            return False
        one.channel.post(kind, payload)
        watch(self.selector, one.channel)
        return True

    def _drop(self, one: LenderStream) -> None:
        if self._streams.pop(one.number, None) is not None:
            self.selector.unregister(one.channel)
            one.channel.close()
            self.deciding.leave(one.number)

    def close(self) -> None:
        for one in list(self._streams.values()):
            self._drop(one)
        self.selector.close()

    # ---- numbers

    def stats(self) -> dict[str, Any]:
        """Return how cores are lent, and how every loader stands."""
        now_s = self._clock()
        self._settle(now_s)
        loaders = [self._numbers(number, one, now_s) for number, one in self.deciding.reported.items()]
        return {
            "manager_pid": os.getpid(),
            "for_s": now_s - self._began_s,
            "cores": sum(one.own for one in self.deciding.heard(now_s).values()),
            "moves": self._loans.moves,
            "loaders": sorted(loaders, key=itemgetter("rank", "pid")),
            "crews": {crew: crew_numbers(book) for crew, book in self._crews.items()},
        }

    def _numbers(self, number: int, one: Lender, now_s: float) -> dict[str, Any]:
        stream = self._streams[number]
        view, sums = one.view, self._loans.sums.get(number)
        assert stream.facts is not None
        assert view is not None
        return {
            "rank": stream.facts.rank,
            "pid": stream.facts.pid,
            "workers": one.workers,
            "allowed": one.allowed,
            "lent_s": sums.lent_s if sums else 0.0,
            "borrowed_s": sums.borrowed_s if sums else 0.0,
            "waited_s": stream.sums.waited_s,
            "epoch": view.epoch,
            "batch": view.taken,
            "ahead": view.ahead,
            "batch_s": view.batch_s,
            "silent_s": now_s - stream.heard_s,
        }


def crew_numbers(book: CrewBook) -> dict[str, Any]:
    """Return how the ranks of a crew compare, and who holds up the others."""
    ranks = book.recent()
    last = slowest_of(ranks)
    return {
        "ranks": [one._asdict() for one in ranks],
        "slowest": None if last is None else {**last._asdict(), "share": last.share},
    }


def main(openings: Openings) -> None:
    """Be the manager, until the node is gone."""
    rule = os.environ.get(RULE, "evened")
    if rule not in RULES:
        raise ConfigError(f"{RULE} must be one of {', '.join(RULES)}, got {rule!r}")
    Manager(rule).run(openings)
