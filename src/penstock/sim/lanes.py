"""Two lanes on one batch under a virtual clock: who takes what when, by the engine's own policy, and how the batch ends."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from penstock.policy.placement import Deal, End, Lane, Piece


class Taken(NamedTuple):
    at_s: float
    lane: Lane
    worker: int
    piece: Piece
    took_s: float


def play(
    deal: Deal, *, workers: int, took_s: Callable[[Piece, Lane], float], with_gpu: bool = True
) -> tuple[End, list[Taken]]:
    """One batch from its first task to its last; `took_s` says what a piece really takes a lane. A lane that is free asks."""
    taken: list[Taken] = []
    ends = {Lane.CPU: 0.0, Lane.GPU: 0.0}
    free: list[tuple[float, int, Lane]] = []
    if with_gpu:
        heappush(free, (0.0, 0, Lane.GPU))
    for worker in range(1, workers + 1):
        heappush(free, (0.0, worker, Lane.CPU))
    while free:
        now_s, worker, lane = heappop(free)
        pieces, deal = deal.take(lane)
        for piece in pieces:
            seconds = took_s(piece, lane)
            taken.append(Taken(now_s, lane, worker, piece, seconds))
            now_s += seconds
            ends[lane] = max(ends[lane], now_s)
            heappush(free, (now_s, worker, lane))
    return End(ends[Lane.CPU], ends[Lane.GPU]), taken
