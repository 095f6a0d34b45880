"""How to divide a node's threads between preparing and fetching, and fetching threads between ranks (Lobster, sections 4.1 to 4.4).

Preparation: for each sample size, throughput is a piecewise-linear function of the threads, fitted to measurements. A size without a model takes that of the
closest size, by ratio.
Fetching: Equation 1. A rank's bytes from its node's cache, from peers and from the source each take bytes / (threads * throughput of one thread at
that concurrency); its threads do one kind after the other, so times add.
Search: Algorithm 1 for each rank, from threads in proportion to its bytes, by halving between bounds; too slow raises the lower bound. The best seen counts. All
ranks of a node share one budget, which the paper's searches have not: if their wishes exceed it, each thread goes to the rank that is slowest
so far.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from penstock.errors import ConfigError
from penstock.policy.costs import solved

NEAR_PEAK = 0.98
"""Preparation takes the fewest threads with this share of its highest throughput: more cost memory bandwidth and bring nothing."""
MOST_KNOTS = 2
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PiecewiseLine:
    """A continuous function, linear between its points; beyond them it keeps the first and the last value."""

    points: tuple[Point, ...]

    def at(self, x: float) -> float:
        place = bisect_right(self.points, (x, math.inf))
        if place in (0, len(self.points)):
            return self.points[min(place, len(self.points) - 1)][1]
        (x0, y0), (x1, y1) = self.points[place - 1 : place + 1]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def fitted(measured: Sequence[Point]) -> PiecewiseLine:
    """Fit a piecewise line with at most `MOST_KNOTS` bends, at measured places; a bend must reduce the error more than chance would (BIC)."""
    places = sorted({x for x, _ in measured})
    if len(places) < 2:
        raise ConfigError(f"a fit needs measurements at two places at least, got {places}")
    best: tuple[float, PiecewiseLine] | None = None
    for count in range(min(MOST_KNOTS, len(places) - 2) + 1):
        for knots in combinations(places[1:-1], count):
            line, error = _least_squares(measured, (places[0], *knots, places[-1]))
            score = len(measured) * math.log(error + 1e-12) + (2 * count + 2) * math.log(len(measured))
            if best is None or score < best[0]:
                best = score, line
    assert best is not None
    return best[1]


def _least_squares(measured: Sequence[Point], places: tuple[float, ...]) -> tuple[PiecewiseLine, float]:
    """Return the best line with bends at these places, and its mean squared error, relative to the mean square of the values."""

    def row(x: float) -> list[float]:
        return [1.0, x - places[0], *(max(0.0, x - knot) for knot in places[1:-1])]

    rows = [(row(x), y) for x, y in measured]
    size = len(places)
    squares = [[sum(r[i] * r[j] for r, _ in rows) for j in range(size)] for i in range(size)]
    weights = solved(squares, [sum(r[i] * y for r, y in rows) for i in range(size)])

    def value(r: list[float]) -> float:
        return sum(w * a for w, a in zip(weights, r, strict=True))

    error = sum((value(r) - y) ** 2 for r, y in rows) / max(1e-300, sum(y * y for _, y in rows))
    return PiecewiseLine(tuple((x, max(0.0, value(row(x)))) for x in places)), error


@dataclass(frozen=True, slots=True)
class PrepareModel:
    """Samples per second by threads, for each sample size that was measured."""

    by_size: Mapping[int, PiecewiseLine]

    def closest(self, size_bytes: float) -> PiecewiseLine:
        return self.by_size[
            min(self.by_size, key=lambda known: (abs(math.log(known / max(1.0, size_bytes))), known))
        ]

    def peak_threads(self, size_bytes: float, most: int) -> int:
        """Return the fewest threads that come near the highest throughput."""
        line = self.closest(size_bytes)
        top = max(line.at(threads) for threads in range(1, most + 1))
        return next(threads for threads in range(1, most + 1) if line.at(threads) >= NEAR_PEAK * top)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchModel:
    """Bytes per second of one thread, by the threads that read at once."""

    local: PiecewiseLine
    peers: PiecewiseLine
    source: PiecewiseLine


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDemand:
    """What one rank's next batch needs."""

    samples: int
    local_bytes: float
    peer_bytes: float
    source_bytes: float

    @property
    def total_bytes(self) -> float:
        return self.local_bytes + self.peer_bytes + self.source_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPlan:
    """A division of threads, and what the slowest rank takes with it."""

    prepare: int
    fetch: tuple[int, ...]
    """Threads of each rank."""
    slowest_s: float


def fetch_s(demand: RankDemand, threads: int, model: FetchModel) -> float:
    """Return Equation 1: seconds to fetch a batch with so many threads."""
    kinds = (
        (demand.local_bytes, model.local),
        (demand.peer_bytes, model.peers),
        (demand.source_bytes, model.source),
    )
    if not demand.total_bytes:
        return 0.0
    if not threads:
        return math.inf
    return sum(size / (threads * line.at(threads)) for size, line in kinds if size)


def search_threads(difference_s: Callable[[int], float], first: int, most: int, tolerance_s: float) -> int:
    """Return the threads with the least difference to the training step, by halving (Algorithm 1). Above 0 is too slow."""
    low, high, tried = 0, most, dict[int, float]()
    threads = min(max(first, 1), most)
    while threads not in tried:
        tried[threads] = difference_s(threads)
        if abs(tried[threads]) < tolerance_s:
            break
        if tried[threads] > 0:
            low = threads
        else:
            high = threads
        threads = min(most, low + max(1, (high - low) // 2))
    return min(tried, key=lambda number: (abs(tried[number]), number))


def share_threads(
    demands: Sequence[RankDemand], budget: int, model: FetchModel, *, time_left_s: float, tolerance_s: float
) -> tuple[int, ...]:
    """Return the fetching threads of each rank, together at most `budget`: each so that its batch takes about `time_left_s`."""
    total = sum(demand.total_bytes for demand in demands)
    wishes = []
    for demand in demands:
        if not demand.total_bytes:
            wishes.append(0)
            continue
        first = round(budget * demand.total_bytes / total)
        wishes.append(
            search_threads(
                lambda threads, demand=demand: fetch_s(demand, threads, model) - time_left_s,  # type: ignore[misc]
                first,
                budget,
                tolerance_s,
            )
        )
    if sum(wishes) <= budget:
        return tuple(wishes)
    given = [0] * len(demands)
    for _ in range(budget):
        slowest = max(
            (rank for rank, wish in enumerate(wishes) if given[rank] < wish),
            key=lambda rank: (
                fetch_s(demands[rank], given[rank], model),
                demands[rank].total_bytes,
                -rank,
            ),
        )
        given[slowest] += 1
    return tuple(given)


def divide_threads(
    demands: Sequence[RankDemand],
    threads: int,
    prepare: PrepareModel,
    fetch: FetchModel,
    *,
    train_s: float,
    tolerance_s: float,
) -> ThreadPlan:
    """Divide a node's threads: preparation near its peak first, then fewer threads for it if that lets a step end sooner."""
    if threads < 2:
        raise ConfigError(f"fetching and preparing need two threads at least, got {threads}")
    samples = sum(demand.samples for demand in demands)
    size = sum(demand.total_bytes for demand in demands) / max(1, samples)
    line = prepare.closest(size)

    def with_preparing(count: int) -> ThreadPlan:
        prepare_s = samples / max(1e-9, line.at(count))
        left_s = max(0.0, train_s - prepare_s)
        given = share_threads(demands, threads - count, fetch, time_left_s=left_s, tolerance_s=tolerance_s)
        slowest = max(
            (fetch_s(demand, number, fetch) for demand, number in zip(demands, given, strict=True)),
            default=0.0,
        )
        return ThreadPlan(prepare=count, fetch=given, slowest_s=prepare_s + slowest)

    # All counts below the peak are looked at: a thread may help no rank until there is one for each.
    best: ThreadPlan | None = None
    for count in range(prepare.peak_threads(size, threads - 1), 0, -1):
        plan = with_preparing(count)
        if best is None or plan.slowest_s < best.slowest_s:
            best = plan
        if best.slowest_s <= train_s:
            break
    assert best is not None
    return best
