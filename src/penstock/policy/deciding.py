"""Who may begin tasks with how many workers, while loaders come, report, fall silent and go. Pure: the manager of cores and the simulator drive it,
each by its own clock.

Rule 1: a loader's *own* cores are as many as its workers. Loaders that follow the cores (`num_workers="auto"`) divide those that are there, and each
        has one at least.
Rule 2: loaders lend within a *pool*: those that may use mostly the same cores. A core cannot be used by who is not bound to it.
Rule 3: a loader that is not heard for `SILENT_S` has its own workers, and lends nothing more: it may be stopped.
Rule 4: nothing is decided while every loader uses its own cores and needs no more.
Rule 5: a grant that differs from a loader's number of workers is repeated every `BEAT_S`. A loader that hears nothing goes back to its own workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.policy.lending import MOST, RankView, Rule, apportioned

PAUSE_S = 0.010
"""Between two decisions. By the simulator of ranks, cores move four times as often without it, and steps are not shorter."""
BEAT_S = 0.2
SILENT_S = 2.0
LATELY_S = 0.5
"""Training that has taken a batch within this time is about to take another."""
NOBODY = -1


@dataclass(slots=True)
class Lender:
    """A loader that has joined."""

    auto: bool
    """Whether its workers are a share of the cores, not a number that the user has given."""
    cores: frozenset[int]
    """Those it may use; empty: unknown."""
    lends: bool = True
    """Whether it lends and borrows, or is only compared with others."""
    view: RankView | None = None
    """What it has reported; its `home` is its number of workers."""
    heard_s: float = -math.inf
    took_s: float = -math.inf
    """When its training took a batch last, as far as we know."""
    own: int = 0
    """Cores that are its own now."""
    granted: int = NOBODY
    """What it was told last; `NOBODY`: nothing yet, so it uses its own workers."""
    told_own: int = NOBODY
    """How many cores it was told are its own."""
    told_s: float = -math.inf

    @property
    def workers(self) -> int:
        return self.view.home if self.view is not None else 0

    @property
    def allowed(self) -> int:
        return self.granted if self.granted != NOBODY else self.workers

    @property
    def is_short(self) -> bool:
        return self.view is not None and self.view.is_short

    @property
    def is_concerned(self) -> bool:
        """Whether it has not what is its own, or wants more."""
        return self.allowed != self.own or self.is_short

    def as_seen(self, now_s: float) -> RankView:
        """Return how it stands. What it was told last counts, not what it had done about that when it wrote."""
        assert self.view is not None
        return self.view._replace(
            allowed=self.allowed,
            home=self.own,
            most=MOST * self.workers,
            steps=now_s - self.took_s < LATELY_S,
        )


class Deciding:
    def __init__(
        self, rule: Rule, now_s: float, *, quota: float | None = None, pause_s: float = PAUSE_S
    ) -> None:
        self._rule, self._pause_s = rule, pause_s
        self.quota = quota
        """Cores that the container may use; None: all."""
        self.lenders: dict[int, Lender] = {}
        self._news = False
        self._decided_s = now_s
        self.calm = False
        """By the last decision everyone has what is theirs, and nobody who was heard wanted more."""
        self._pools: list[list[int]] = []
        self._pools_of: tuple[Any, ...] = ()
        """What the pools and everyone's own cores follow from."""

    # ---- what happens

    def join(self, number: int, *, auto: bool, cores: frozenset[int], lends: bool = True) -> None:
        """Take in a loader, or other facts of one that is in."""
        if number not in self.lenders:
            self.lenders[number] = Lender(auto, cores, lends)
            self._pools_of = ()
        one = self.lenders[number]
        one.auto, one.cores, one.lends = auto, cores, lends
        self._news = True

    def report(self, number: int, view: RankView, now_s: float) -> None:
        one = self.lenders[number]
        if one.view is not None and (one.view.epoch, one.view.taken) != (view.epoch, view.taken):
            one.took_s = now_s
        changed = one.view is None or one.workers != view.home
        one.view = view
        if changed:  # until the next decision
            one.own, self._pools_of = view.home, ()
        self._news |= changed or not self.calm or one.is_concerned

    def hear(self, number: int, now_s: float) -> None:
        """It is there."""
        if number in self.lenders:
            self.lenders[number].heard_s = now_s

    def leave(self, number: int) -> None:
        """Take what it has lent and borrowed for returned."""
        self._news |= self.lenders.pop(number, None) is not None

    def told(self, number: int, workers: int, now_s: float) -> None:
        one = self.lenders[number]
        one.granted, one.told_own, one.told_s = workers, one.own, now_s

    # ---- decisions

    @property
    def due_s(self) -> float:
        """When to decide next."""
        if not any(one.view is not None for one in self.lenders.values()):
            return math.inf
        return self._decided_s + (self._pause_s if self._news else BEAT_S)

    @property
    def reported(self) -> dict[int, Lender]:
        return {number: one for number, one in self.lenders.items() if one.view is not None}

    def heard(self, now_s: float) -> dict[int, Lender]:
        return {  # guard: silent-lender
            number: one for number, one in self.reported.items() if now_s - one.heard_s <= SILENT_S
        }

    def decide(self, now_s: float) -> dict[int, int]:
        """Return who is to be told with how many workers it may begin tasks, and how many cores are its own."""
        self._news, self._decided_s = False, now_s
        reported, heard = self.reported, self.heard(now_s)
        self._set_own(reported, heard)
        allowed = {number: one.own for number, one in reported.items()}
        wanted = any(one.is_short for one in heard.values())
        if wanted or any(one.allowed != one.own for one in reported.values()):
            for pool in self._pools:
                views = [heard[number].as_seen(now_s) for number in pool]
                numbers = self._rule(views, sum(view.home for view in views))
                allowed.update(zip(pool, numbers, strict=True))
        self.calm = not wanted and all(allowed[number] == one.own for number, one in reported.items())
        return {
            number: allowed[number]
            for number, one in reported.items()
            if (allowed[number], one.own) != (one.granted, one.told_own)
            or (allowed[number] != one.workers and now_s - one.told_s >= BEAT_S)
        }

    def _set_own(self, reported: Mapping[int, Lender], heard: Mapping[int, Lender]) -> None:
        """Set everyone's own cores, and the pools, if anything that they follow from has changed."""
        facts = tuple(
            (number, one.workers, one.auto, one.cores, one.lends, number in heard)
            for number, one in reported.items()
        )
        if (self.quota, *facts) == self._pools_of:
            return
        self._pools_of = (self.quota, *facts)
        for one in reported.values():
            one.own = one.workers
        lend = {number: one for number, one in heard.items() if one.lends}
        self._pools = pools({number: one.cores for number, one in lend.items()})
        for pool in self._pools:
            members = [lend[number] for number in pool]
            for one, own in zip(members, owned(members, self.quota), strict=True):
                one.own = own


def owned(members: Sequence[Lender], quota: float | None) -> list[int]:
    """Return everyone's own cores in a pool."""
    auto = [one for one in members if one.auto]
    there = len(frozenset[int]().union(*(one.cores for one in auto)))
    if not there:
        return [one.workers for one in members]
    if quota is not None:
        there = min(there, max(1, int(quota)))
    numbers = [one.workers for one in auto]
    shares = iter(apportioned(min(sum(numbers), there), numbers))
    return [
        min(one.workers, max(1, next(shares))) if one.auto else one.workers  # guard: one-core-at-least
        for one in members
    ]


def pools(cores: Mapping[int, frozenset[int]]) -> list[list[int]]:
    """Group those that may use mostly the same cores: one that may use all of two ranks' cores does not join these."""
    groups: list[tuple[set[frozenset[int]], list[int]]] = []
    for mine, numbers in grouped(cores).items():
        near = [group for group in groups if any(are_mostly_the_same(mine, each) for each in group[0])]
        joined = (
            {mine}.union(*(group[0] for group in near)),
            [number for group in near for number in group[1]] + numbers,
        )
        groups = [*(group for group in groups if not any(group is each for each in near)), joined]
    return [sorted(members) for _, members in groups]


def grouped(cores: Mapping[int, frozenset[int]]) -> dict[frozenset[int], list[int]]:
    same: dict[frozenset[int], list[int]] = {}
    for number, mine in cores.items():
        same.setdefault(mine, []).append(number)
    return same


def are_mostly_the_same(one: frozenset[int], other: frozenset[int]) -> bool:
    return one == other or 2 * len(one & other) > len(one | other)
