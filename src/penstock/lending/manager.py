"""The manager of a machine's cores: tells each loader how many workers may begin tasks. A service of the node process (`penstock.node`).

Rule 1: whoever has joined has a say until its stream ends. Then its own cores go, and what it has borrowed is back at once: nobody is asked.
Rule 2: a loader that is not heard for `SILENT_S` has what is its own, and lends nothing more: it may be stopped.
Rule 3: who has not its own number of cores hears from us several times a second. Else it takes back what is its own.
Rule 4: loaders bound to different cores (of another NUMA node, say) do not lend to each other: a core cannot be used from there.
Rule 5: nobody can make it wait; who sends nonsense is dropped. If it ends, every loader has what is its own.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
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
from penstock.policy.lending import RULES, RankView
from penstock.policy.loans import Loans, Standing, pools
from penstock.policy.stragglers import CrewBook, CrewMember, slowest_of
from penstock.wire.frames import Channel
from penstock.wire.watching import watch

RULE = "PENSTOCK_LENDING_RULE"
"""Of benchmarks: another rule than ours."""
PAUSE_S = 0.010
"""Between two decisions. By the simulator of ranks, cores move four times as often without it, and steps are not shorter."""
BEAT_S = 0.2
SILENT_S = 2.0
MOST_CREWS = 16
"""Crews whose numbers are kept, those noted last. A crew's name follows from its data set, so they are few."""


@dataclass(slots=True, eq=False)
class Lender:
    """A loader, by its agent's stream."""

    number: int
    channel: Channel
    facts: LenderFacts | None = None
    """None: it has not joined, or only asks for numbers."""
    report: Report | None = None
    heard_s: float = 0.0
    granted: int = -1
    """What it was told last; -1: nothing yet, so it uses its own."""
    told_s: float = 0.0


class Manager:
    def __init__(self, rule: str = "evened", clock: Callable[[], float] = time.monotonic) -> None:
        self._rule, self._clock = RULES[rule], clock
        self.selector = selectors.DefaultSelector()
        self._lenders: dict[int, Lender] = {}
        self._loans = Loans()
        self._crews: dict[str, CrewBook] = {}
        self._next = 0
        self._news = self._over = False
        self._calm = False
        """Everyone had what is theirs when we last decided, and wanted no more."""
        self._quota = cpu_quota()
        self._decided_s = self._settled_s = self._beat_s = self._began_s = clock()

    def run(self, openings: Openings) -> None:
        """Serve until the node is gone."""
        self.selector.register(openings, selectors.EVENT_READ, lambda _: self._take(openings))
        while not self._over:
            self.turn(self._patience_s())

    def turn(self, within_s: float) -> None:
        """Hear what comes within this time, and answer."""
        for key, mask in self.selector.select(within_s):
            key.data(mask)
        self._look(self._clock())

    def _patience_s(self) -> float:
        now_s = self._clock()
        if self._news:
            return max(0.0, self._decided_s + PAUSE_S - now_s)
        return max(0.0, self._beat_s + BEAT_S - now_s) if self._joined() else 60.0

    def _look(self, now_s: float) -> None:
        """Decide if there are news; say that we are there."""
        if now_s >= self._beat_s + BEAT_S:
            self._beat_s, self._news, self._quota = now_s, True, cpu_quota()
        if self._news and now_s >= self._decided_s + PAUSE_S:
            self._news, self._decided_s = False, now_s
            self._decide(now_s)

    # ---- decisions

    def _joined(self) -> list[Lender]:
        return [one for one in self._lenders.values() if one.facts is not None and one.report is not None]

    def _heard(self, now_s: float) -> list[Lender]:
        return [one for one in self._joined() if now_s - one.heard_s <= SILENT_S]  # guard: silent-lender

    def _decide(self, now_s: float) -> None:
        joined, heard = self._joined(), self._heard(now_s)
        allowed = {one.number: home_of(one) for one in joined}
        calm = not any(is_concerned(one) for one in joined)
        for pool in pools({one.number: cores_of(one) for one in heard if lends(one)}):
            members = [self._lenders[number] for number in pool]
            cores = budget(members, self._quota)
            if calm and cores >= sum(map(home_of, members)):
                continue  # all rules leave everything where it is
            numbers = self._rule([view_of(one) for one in members], cores)
            allowed.update(zip(pool, numbers, strict=True))
        for one in joined:
            number = allowed[one.number]
            changed = number != one.granted
            if (changed or (number != home_of(one) and now_s - one.told_s >= BEAT_S)) and self._post(
                one, LendMsg.GRANT, GRANT.pack(number)
            ):
                one.granted, one.told_s = number, now_s
        self._calm = not any(is_concerned(one) for one in joined)
        if not (calm and self._calm) or now_s >= self._settled_s + BEAT_S:
            self._settle(now_s)

    def _settle(self, now_s: float) -> None:
        self._settled_s = now_s
        sides = {one.number: Standing(home_of(one), allowed_to(one)) for one in self._joined()}
        self._loans.settle(now_s, sides)
        for crew in {one.facts.crew for one in self._joined() if one.facts is not None and one.facts.crew}:
            book = self._crews.pop(crew, None) or CrewBook()
            book.note({one.number: member_of(one) for one in self._joined() if is_of(one, crew)})
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
        one = Lender(self._next, Channel(opening.stream, MOST_BYTES))
        self._next += 1
        self._lenders[one.number] = one
        self.selector.register(one.channel, selectors.EVENT_READ, partial(self._hear, one))

    def _hear(self, one: Lender, mask: int) -> None:
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

    def _on_frame(self, one: Lender, kind: int, payload: bytes) -> None:
        one.heard_s = self._clock()
        if kind == LendMsg.JOIN:
            one.facts = LenderFacts.unpack(payload)
            self._news = True
        elif kind == LendMsg.REPORT and one.facts is not None:
            # Loaders that are in step with no other are told apart by their numbers.
            one.report = Report.unpack(payload, one.facts.crew or f"alone {one.number}")
            self._news |= not self._calm or one.granted < 0 or is_concerned(one)
        elif kind == LendMsg.STATS:
            self._post(one, LendMsg.STATED, pack_stats(self.stats()))
        else:
            raise BadLendingFrame(f"a message of kind {kind} is not expected")

    def _post(self, one: Lender, kind: LendMsg, payload: bytes) -> bool:
        """Tell a loader something, unless it has not read what it was told before."""
        if one.channel.clogged:  # guard: lender-does-not-read
            return False
        one.channel.post(kind, payload)
        watch(self.selector, one.channel)
        return True

    def _drop(self, one: Lender) -> None:
        if self._lenders.pop(one.number, None) is not None:
            self.selector.unregister(one.channel)
            one.channel.close()
            self._news = True

    def close(self) -> None:
        for one in list(self._lenders.values()):
            self._drop(one)
        self.selector.close()

    # ---- numbers

    def stats(self) -> dict[str, Any]:
        """Return how cores are lent, and how every loader stands."""
        now_s, joined = self._clock(), self._joined()
        self._settle(now_s)
        return {
            "manager_pid": os.getpid(),
            "for_s": now_s - self._began_s,
            "cores": budget(self._heard(now_s), self._quota),
            "moves": self._loans.moves,
            "loaders": sorted((self._numbers(one, now_s) for one in joined), key=itemgetter("rank", "pid")),
            "crews": {crew: crew_numbers(book) for crew, book in self._crews.items()},
        }

    def _numbers(self, one: Lender, now_s: float) -> dict[str, Any]:
        assert one.facts is not None
        assert one.report is not None
        view, sums = one.report.view, self._loans.sums.get(one.number)
        return {
            "rank": one.facts.rank,
            "pid": one.facts.pid,
            "workers": view.home,
            "allowed": allowed_to(one),
            "lent_s": sums.lent_s if sums else 0.0,
            "borrowed_s": sums.borrowed_s if sums else 0.0,
            "waited_s": one.report.sums.waited_s,
            "epoch": view.epoch,
            "batch": view.taken,
            "ahead": view.ahead,
            "batch_s": view.batch_s,
            "silent_s": now_s - one.heard_s,
        }


def view_of(one: Lender) -> RankView:
    """Return how a loader stands. What it was told last counts, not what it had done about that when it wrote."""
    assert one.report is not None
    view = one.report.view
    return view._replace(allowed=allowed_to(one))


def is_concerned(one: Lender) -> bool:
    """Whether it has not its own number of cores, or wants others."""
    return allowed_to(one) != home_of(one) or (one.report is not None and one.report.view.is_short)


def allowed_to(one: Lender) -> int:
    return one.granted if one.granted >= 0 else home_of(one)


def home_of(one: Lender) -> int:
    return one.report.view.home if one.report is not None else 0


def lends(one: Lender) -> bool:
    return one.facts is not None and one.facts.lends


def is_of(one: Lender, crew: str) -> bool:
    return one.facts is not None and one.facts.crew == crew


def member_of(one: Lender) -> CrewMember:
    assert one.facts is not None
    assert one.report is not None
    return CrewMember(one.facts.rank, one.report.view.home, one.report.sums)


def crew_numbers(book: CrewBook) -> dict[str, Any]:
    """Return how the ranks of a crew compare, and who holds up the others."""
    ranks = book.recent()
    last = slowest_of(ranks)
    return {
        "ranks": [one._asdict() for one in ranks],
        "slowest": None if last is None else {**last._asdict(), "share": last.share},
    }


def cores_of(one: Lender) -> frozenset[int]:
    return frozenset(one.facts.cores) if one.facts is not None else frozenset()


def budget(lenders: list[Lender], quota: float | None) -> int:
    """Return how many cores there are for all: those that users have given, and for loaders that follow the cores no more than there are."""
    given = sum(home_of(one) for one in lenders if one.facts is not None and not one.facts.auto)
    auto = [one for one in lenders if one.facts is not None and one.facts.auto]
    there = len(frozenset[int]().union(*(cores_of(one) for one in auto)))
    if quota is not None:
        there = min(there, max(1, int(quota)))
    wanted = sum(home_of(one) for one in auto)
    return given + (min(wanted, there) if there else wanted)


def main(openings: Openings) -> None:
    """Be the manager, until the node is gone."""
    rule = os.environ.get(RULE, "evened")
    if rule not in RULES:
        raise ConfigError(f"{RULE} must be one of {', '.join(RULES)}, got {rule!r}")
    Manager(rule).run(openings)
