"""Which rank of a machine holds up the others, and why. Pure.

With a barrier in every step, ranks that have their batch wait there until the last rank has its own. No rank sees that wait. But each measures
how long its own training waits for batches, and that is what the others wait in the barrier.

Rule 1: ranks are compared if they are of one crew and take about as many batches. Others do not wait for each other.
Rule 2: the rank that waits longest holds up the others, for the time by which it waits longer than the middle one of them.
Rule 3: only the recent steady state counts, as in `stats()["recent"]`: no start, no pauses.
Rule 4: numbers of ranks that have left stay until another rank joins: at the end of an epoch the last one still sees the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import NamedTuple

WINDOW_S, WINDOW_BATCHES = 30.0, 40
MARK_S = 1.0
"""Time between two marks; the window begins at one of them."""
DRIFT = 8
"""Batches by which ranks in step may differ: copies to a device run ahead, and pauses do not count on each rank alike."""
FEW, FEW_S = 10, 1.0
"""Fewer batches, or less time, say nothing."""
FINE = 0.02
"""Share of the time below which nobody holds up anybody."""
ALIKE = 0.5
"""A rank that holds up the others for this part of what the slowest does is named with it."""
CLEAR = 1.2
"""From this factor on, a rank's samples or cores differ from the others'."""
CROWDED = 0.1
"""Share of its workers' time waiting for a core by which a rank must exceed the others."""


class RankSums(NamedTuple):
    """Sums of a loader so far."""

    batches: int = 0
    """Taken by training, in its steady state."""
    elapsed_s: float = 0.0
    """Time of these."""
    waited_s: float = 0.0
    """Part of that time in which training waited for them."""
    samples: int = 0
    """Prepared by its workers."""
    busy_s: float = 0.0
    """Work in these, blocked or computing."""
    cpu_s: float = 0.0
    delayed_s: float = 0.0
    """Time that its workers waited for a core."""
    extra_s: float = 0.0
    """Core-seconds borrowed, less those lent."""


class CrewMember(NamedTuple):
    rank: int
    home: int
    sums: RankSums


class RankRecent(NamedTuple):
    """A rank in the recent steady state."""

    rank: int
    batches: int
    elapsed_s: float
    waited_s: float
    cores: float
    """It was allowed so many on average."""
    sample_s: float
    """Work in a sample, blocked or computing; 0: unknown."""
    sample_cpu_s: float
    """Part of that on a core."""
    delayed_share: float
    """Share of its workers' time waiting for a core."""


class Why(StrEnum):
    SAMPLES = "samples"
    """They need more computing."""
    SOURCE = "source"
    """They are blocked for longer: reading or waiting."""
    CORES = "cores"
    """It has fewer."""
    CROWD = "crowd"
    """Others use its cores."""
    SINGLE = "single samples"
    """On average it is like the others."""


class Slowest(NamedTuple):
    """Who holds up the others."""

    rank: int
    ranks: tuple[int, ...]
    """This rank, and others nearly as slow."""
    held_s: float
    of_s: float
    """The time that `held_s` is a part of."""
    why: Why
    sample_times: float
    """What its samples cost, as a multiple of the others'; 0: unknown."""
    cores: float
    other_cores: float
    delayed_share: float

    @property
    def share(self) -> float:
        return min(1.0, self.held_s / self.of_s) if self.of_s > 0 else 0.0


@dataclass(slots=True)
class CrewBook:
    """The recent past of one crew."""

    now: dict[int, CrewMember] = field(default_factory=dict)
    """Newest numbers, by loader."""
    marks: deque[dict[int, RankSums]] = field(default_factory=deque)

    def note(self, members: Mapping[int, CrewMember]) -> None:
        """Note how its loaders stand now."""
        begun = {one: member for one, member in members.items() if member.sums.batches}
        if begun.keys() - self.now.keys():
            self.now, self.marks = begun, deque([all_sums(begun)])
            return
        self.now |= begun
        if begun and self._since(self.marks[-1]).elapsed_s >= MARK_S:
            self.marks.append(all_sums(self.now))
            while len(self.marks) > 1 and is_enough(self._since(self.marks[1])):
                self.marks.popleft()

    def _since(self, mark: Mapping[int, RankSums]) -> RankSums:
        """Return what the rank that has gone furthest has done since."""
        return max(difference(member.sums, mark[one]) for one, member in self.now.items())

    def recent(self) -> list[RankRecent]:
        """Return its ranks' recent numbers."""
        if not self.marks:
            return []
        first = self.marks[0]
        return sorted(recent_of(member, first[one]) for one, member in self.now.items())


def all_sums(members: Mapping[int, CrewMember]) -> dict[int, RankSums]:
    return {one: member.sums for one, member in members.items()}


def difference(now: RankSums, then: RankSums) -> RankSums:
    return RankSums._make(one - other for one, other in zip(now, then, strict=True))


def is_enough(done: RankSums) -> bool:
    return done.elapsed_s >= WINDOW_S and done.batches >= WINDOW_BATCHES


def recent_of(member: CrewMember, then: RankSums) -> RankRecent:
    done = difference(member.sums, then)
    extra = done.extra_s / done.elapsed_s if done.elapsed_s > 0 else 0.0
    samples, worked_s = max(1, done.samples), done.busy_s + done.delayed_s
    return RankRecent(
        rank=member.rank,
        batches=done.batches,
        elapsed_s=done.elapsed_s,
        waited_s=done.waited_s,
        cores=max(0.0, member.home + extra),
        sample_s=done.busy_s / samples,
        sample_cpu_s=min(done.cpu_s, done.busy_s) / samples,
        delayed_share=done.delayed_s / worked_s if worked_s > 0 else 0.0,
    )


def slowest_of(ranks: Sequence[RankRecent]) -> Slowest | None:
    """Return who holds up the others; None if nobody does, or nobody can tell."""
    most = max((one.batches for one in ranks), default=0)
    near = [one for one in ranks if most - one.batches <= DRIFT]
    last = max(near, key=lambda one: (one.waited_s, -one.rank), default=None)
    if last is None or most < FEW or last.elapsed_s < FEW_S:
        return None
    others = [one for one in near if one.rank != last.rank]
    if not others:
        return None
    usual_s = median(one.waited_s for one in others)
    held_s, of_s = last.waited_s - usual_s, max(one.elapsed_s for one in near)
    alike = [one for one in near if one.waited_s - usual_s >= ALIKE * held_s]
    rest = [one for one in others if one not in alike] or others
    if held_s < FINE * of_s:
        return None
    return Slowest(
        rank=last.rank,
        ranks=tuple(sorted({one.rank for one in alike})),
        held_s=held_s,
        of_s=of_s,
        why=why(last, rest),
        sample_times=times(last.sample_s, usual(one.sample_s for one in rest)),
        cores=last.cores,
        other_cores=usual(one.cores for one in rest),
        delayed_share=last.delayed_share,
    )


def why(last: RankRecent, others: Sequence[RankRecent]) -> Why:
    """Return what differs most between a slow rank and the others."""
    dearer = times(last.sample_s, usual(one.sample_s for one in others))
    fewer = times(usual(one.cores for one in others), last.cores)
    if dearer >= max(CLEAR, fewer):
        cpu_s = last.sample_cpu_s - usual(one.sample_cpu_s for one in others)
        blocked_s = last.sample_s - usual(one.sample_s for one in others) - cpu_s
        return Why.SOURCE if blocked_s > cpu_s else Why.SAMPLES
    if fewer >= CLEAR:
        return Why.CORES
    if last.delayed_share >= CROWDED + usual(one.delayed_share for one in others):
        return Why.CROWD
    return Why.SINGLE


def usual(values: Iterable[float]) -> float:
    return float(median(values))


def times(one: float, other: float) -> float:
    """Return the first as a multiple of the second; 0 if unknown."""
    return one / other if one > 0 and other > 0 else 0.0
