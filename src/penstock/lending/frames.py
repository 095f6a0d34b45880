"""Messages between agents and the manager of cores."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from math import isfinite
from struct import Struct, error
from typing import Any

from penstock.policy.lending import RankView
from penstock.policy.stragglers import RankSums

SERVICE = "lending"
REPORT = Struct("<iqqddiiiiiqddqdddd")
GRANT = Struct("<ii")
"""Workers that may begin tasks, and how many cores are the loader's own."""
MOST_BYTES = 64 << 10
MOST_WORKERS, MOST_AHEAD, MOST_S = 1 << 12, 1e9, 1e6
"""A report with more workers, batches ahead or seconds of work in a batch is no report of ours."""


class LendMsg(IntEnum):
    # to the manager
    JOIN = 1
    REPORT = 2
    STATS = 3
    # from it
    GRANT = 16
    STATED = 17


class BadLendingFrame(ValueError):
    """What arrived is no message of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LenderFacts:
    """What a loader is. `auto` and `cores` may change while it runs: it then joins again."""

    pid: int
    """The training process."""
    rank: int
    crew: str
    """Same for loaders that may be in step; "": none other is."""
    cores: tuple[int, ...]
    """Those that the training process may use."""
    auto: bool
    """Whether its workers are a share of the cores, not a number that the user has given."""
    lends: bool = True
    """Whether it lends and borrows, or is only compared with others."""

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, payload: bytes) -> LenderFacts:
        try:
            facts = json.loads(payload)
            numbers = (facts["pid"], facts["rank"], *facts["cores"])
            switches = (facts["auto"], facts["lends"])
            if not (
                isinstance(facts["crew"], str)
                and all(type(number) is int for number in numbers)
                and all(type(switch) is bool for switch in switches)
            ):
                raise TypeError("other types than facts have")
            return cls(**{**facts, "cores": tuple(facts["cores"])})
        except (ValueError, TypeError, KeyError, RecursionError) as exc:
            raise BadLendingFrame(f"no facts of a loader: {exc}") from None


@dataclass(frozen=True, slots=True)
class Report:
    """How a loader stands; what it is allowed, its manager knows."""

    view: RankView
    sums: RankSums = field(default_factory=RankSums)

    def pack(self) -> bytes:
        one = self.view
        return REPORT.pack(
            one.home, one.epoch, one.taken, one.ahead, one.batch_s,
            one.waiting, one.waiting_due, one.soon, one.busy, one.window, *self.sums,
        )  # fmt: skip

    @classmethod
    def unpack(cls, payload: bytes, crew: str) -> Report:
        try:
            home, epoch, taken, ahead, batch_s, *counts = REPORT.unpack(payload)
        except error as exc:
            raise BadLendingFrame(f"no report: {exc}") from None
        waiting, due, soon, busy, window, *rest = counts
        sums = RankSums._make(rest)
        if min(home, waiting, due, soon, busy, window) < 0 or home > MOST_WORKERS:
            raise BadLendingFrame("a report has impossible counts")
        if not (0 <= ahead <= MOST_AHEAD and 0 <= batch_s <= MOST_S):
            raise BadLendingFrame("a report has impossible times")
        if min(sums[:-1]) < 0 or not all(map(isfinite, sums)):
            raise BadLendingFrame("a report has impossible sums")
        view = RankView(home, home, crew, epoch, taken, ahead, batch_s, waiting, due, soon, busy, window)
        return cls(view, sums)


def pack_stats(stats: dict[str, Any]) -> bytes:
    return json.dumps(stats).encode()
