"""How many cores each rank of a machine may use now (FusionFlow's worker scaling). Pure.

What moves between ranks is the right to use a core: a rank has workers enough, and begins tasks with as many as it is allowed.

Rule 1: ranks of one job whose training is at the same step form a *crew*: the slowest of them sets the pace. Loaders out of step are crews of
        their own.
Rule 2: a crew has the cores of its ranks whenever it has work for them. Cores it has no work for go to crews that have more.
Rule 3: within a crew, cores go where they make all ranks equally far ahead of training, counting parts of batches and what a rank's batch
        costs.
Rule 4: a rank borrows if it is less than two batches ahead (less in a window below four), and gives back once it is four ahead. In a small window with
        short steps, it keeps a core for the work that comes when training takes the next batch, unless another rank in step is further behind.
Rule 5: cores that nobody wants are where they belong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

COMPLETE = 1.0
"""The batch that training takes next is complete."""
SHORT = 2.0
"""A rank that is fewer batches ahead borrows: training waits for it, or soon will. With 1, help comes too late where steps are shorter than reports,
decisions and the tasks that lenders still finish take together."""
SMALL_WINDOW = 2
"""A window of so many batches is small."""
SAFE = 4.0
"""A borrower this many batches ahead gives back. With 2, a rank that always needs help borrows and returns in turn, and steps of 15 ms take 22 % longer."""
SOONEST_S = 0.05
"""Ranks are evened out over a step, or over this time if a step is shorter: about what it takes until a moved core works."""
LEAST_S = 1e-9
"""Work in a batch, at least: smaller numbers would be lost in divisions."""
UNEQUAL = 100.0
"""A batch counts as this much cheaper than the mean at most."""
APART = 4
"""Ranks in step have taken at most so many batches more than others: one with a barrier in every step, and those that wait for a device."""
STICKY = 0.25
"""Advantage, in cores, of leaving a core where it is."""
MOST = 4
"""A rank gets at most so many times the workers it has by itself: each takes memory."""


class RankView(NamedTuple):
    """What the manager knows of a rank."""

    home: int
    """Workers it has by itself; for the rule: cores that are its own."""
    allowed: int
    """Workers that may begin tasks now."""
    crew: str = ""
    """Same for loaders that may be in step."""
    epoch: int = 0
    taken: int = 0
    """The batch of the epoch that training takes next."""
    ahead: float = 0.0
    """Batches prepared from that one on, parts included."""
    batch_s: float = 0.0
    """Seconds of work in one batch; 0: not known."""
    waiting: int = 0
    """Samples that no worker has got."""
    waiting_due: int = 0
    """Those of the first incomplete batch, in tasks."""
    soon: int = 0
    """Tasks of that batch more than half done: as many workers are soon free."""
    busy: int = 0
    """Workers that have tasks."""
    window: int = 0
    """Batches that training has asked for and not taken; 0: not known."""
    most: int = 0
    """Workers it may have; 0: `MOST` times its own."""
    steps: bool = False
    """Whether its training took a batch lately."""

    @property
    def enough(self) -> float:
        """Batches ahead with which training need not wait, now or soon. In a small window less is enough: else a rank would be short whenever a
        batch is taken."""
        return min(SHORT, max(COMPLETE, self.window / 2)) if self.window else SHORT

    @property
    def is_short(self) -> bool:
        return self.ahead < self.enough

    @property
    def is_hasty(self) -> bool:
        """Whether it has a small window and short steps."""
        return 0 < self.window <= SMALL_WINDOW and self.batch_s < SOONEST_S * self.home

    @property
    def wants(self) -> int:
        """Cores it has work for, at most; no borrowed ones if training need not wait. In a small window with short steps it has work for its own as
        soon as training takes a batch, and a core that it lends would be back too late."""
        work = min(self.busy + self.waiting, self.most or MOST * self.home)
        if (self.is_short or self.steps) and self.is_hasty:
            work = max(work, self.home)
        borrows = self.ahead < SAFE if self.allowed > self.home else self.is_short
        return work if borrows else min(work, self.home)


Rule = Callable[[Sequence[RankView], int], list[int]]
"""Returns how many workers each rank is allowed, given the cores of all."""


def evened(ranks: Sequence[RankView], cores: int) -> list[int]:
    """Our rule."""
    crews = in_step(ranks)
    homes = [sum(ranks[i].home for i in crew) for crew in crews]
    wants = [sum(ranks[i].wants for i in crew) for crew in crews]
    allowed = [0] * len(ranks)
    for crew, share in zip(crews, entitled(cores, homes, wants), strict=True):
        for i, number in zip(crew, within([ranks[i] for i in crew], share), strict=True):
            allowed[i] = number
    return at_home(allowed, ranks, cores)


def by_waiting(ranks: Sequence[RankView], cores: int) -> list[int]:
    """The paper's rule: a rank that has finished its batch of the step yields its workers to those that have not, in proportion to their
    waiting tasks, less those whose workers are soon free. All workers are home when the step's batches are complete."""
    step = min(((rank.epoch, rank.taken) for rank in ranks), default=(0, 0))
    needs = [
        max(0, rank.waiting_due - rank.soon)
        if (rank.epoch, rank.taken) == step and rank.ahead < COMPLETE
        else 0
        for rank in ranks
    ]
    homes = apportioned(min(cores, sum(rank.home for rank in ranks)), [rank.home for rank in ranks])
    finished = [rank.ahead >= COMPLETE or (rank.epoch, rank.taken) != step for rank in ranks]
    if not any(needs) or not any(finished):
        return homes
    free = sum(home for home, done in zip(homes, finished, strict=True) if done)
    more = apportioned(free, needs)
    return [(0 if done else home) + extra for home, done, extra in zip(homes, finished, more, strict=True)]


def never(ranks: Sequence[RankView], cores: int) -> list[int]:  # noqa: ARG001 - as the other rules
    """Nobody lends."""
    return [rank.home for rank in ranks]


RULES: dict[str, Rule] = {"evened": evened, "paper": by_waiting, "never": never}


# ---- crews


def in_step(ranks: Sequence[RankView]) -> list[list[int]]:
    """Group ranks whose training is at about the same step."""
    crews: list[list[int]] = []
    for i in sorted(range(len(ranks)), key=lambda i: (ranks[i].crew, ranks[i].epoch, ranks[i].taken, i)):
        first = ranks[crews[-1][0]] if crews else None
        if first is not None and ranks[i].crew == first.crew and steps_between(first, ranks[i]) <= APART:
            crews[-1].append(i)
        else:
            crews.append([i])
    return crews


def steps_between(one: RankView, later: RankView) -> int:
    """Return how many batches a rank has taken more than another; of the next epoch, it has taken none or is far ahead."""
    if one.epoch == later.epoch:
        return later.taken - one.taken
    return later.taken + 1 if later.epoch == one.epoch + 1 else 1 << 30


def entitled(cores: int, homes: Sequence[int], wants: Sequence[int]) -> list[int]:
    """Divide the cores among crews: each gets what it wants of its own; the rest goes to those that want more."""
    own = apportioned(min(cores, sum(homes)), homes)
    got = [min(mine, want) for mine, want in zip(own, wants, strict=True)]
    more = [want - has for want, has in zip(wants, got, strict=True)]
    extra = apportioned(min(cores - sum(got), sum(more)), more)
    return [has + one for has, one in zip(got, extra, strict=True)]


# ---- within a crew


def within(crew: Sequence[RankView], cores: int) -> list[int]:
    """Divide a crew's cores so that its ranks come to be equally far ahead."""
    known = [rank.batch_s for rank in crew if rank.batch_s > 0]
    typical = sum(known) / len(known) if known else SOONEST_S
    costs = [max(rank.batch_s or typical, typical / UNEQUAL, LEAST_S) for rank in crew]
    first = min(crew, key=lambda rank: (rank.epoch, rank.taken))
    places = [steps_between(first, rank) + rank.ahead for rank in crew]
    within_s = max(SOONEST_S, sum(costs) / max(1, cores))
    rates = [cost / within_s for cost in costs]
    most = [float(rank.wants) for rank in crew]
    shares = levelled(places, rates, most, float(cores))
    sticky = [
        share + (STICKY if int(share) < rank.allowed else 0.0)
        for share, rank in zip(shares, crew, strict=True)
    ]
    return rounded(shares, sticky, min(cores, int(sum(most))), most)


def levelled(
    places: Sequence[float], rates: Sequence[float], most: Sequence[float], cores: float
) -> list[float]:
    """Return cores per rank, fractions too, such that all are at one level after a step: `places` where they are, `rates` the cores it
    takes to come one batch further, `most` what each can use."""
    if sum(most) <= cores:
        return list(most)
    turns = sorted(
        turn
        for place, rate, limit in zip(places, rates, most, strict=True)
        for turn in ((place, rate), (place + limit / rate, -rate))
    )
    level, slope, given = turns[0][0], 0.0, 0.0
    for at, change in turns:
        if given + slope * (at - level) >= cores:
            break
        given += slope * (at - level)
        level, slope = at, slope + change
    level += (cores - given) / slope if slope > 0 else 0.0
    return [
        min(limit, max(0.0, (level - place) * rate))
        for place, rate, limit in zip(places, rates, most, strict=True)
    ]


def rounded(shares: Sequence[float], sticky: Sequence[float], total: int, most: Sequence[float]) -> list[int]:
    """Round to whole cores that sum to `total`: those with the largest rests get one more."""
    whole = [min(int(share), int(limit)) for share, limit in zip(shares, most, strict=True)]
    rests = [wish - has for wish, has in zip(sticky, whole, strict=True)]
    while (missing := total - sum(whole)) != 0:
        step = 1 if missing > 0 else -1
        able = [i for i in range(len(whole)) if 0 <= whole[i] + step <= most[i]]
        best = max(able, key=lambda i: (step * rests[i], -i))
        whole[best] += step
        rests[best] -= step
    return whole


def at_home(allowed: list[int], ranks: Sequence[RankView], cores: int) -> list[int]:
    """Put cores that nobody wants where they belong."""
    left = cores - sum(allowed)
    missing = [max(0, rank.home - has) for rank, has in zip(ranks, allowed, strict=True)]
    back = apportioned(max(0, min(left, sum(missing))), missing)
    return [has + one for has, one in zip(allowed, back, strict=True)]


def apportioned(total: int, weights: Sequence[int]) -> list[int]:
    """Divide a number in proportion to weights, in whole parts; the largest remainders get one more. Nobody gets more than their weight if the
    total is not above the sum of weights."""
    summed = sum(weights)
    if summed <= 0:
        return [0] * len(weights)
    parts = [total * weight // summed for weight in weights]
    by_rest = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % summed), i))
    for i in by_rest[: total - sum(parts)]:
        parts[i] += 1
    return parts
