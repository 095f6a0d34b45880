"""The state of `course`: what has been measured, decided and tried about remote workers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from penstock.policy.offload import Metrics, PlanMetrics
from penstock.policy.refinement import SHORTEST_REST, Refinement

NOW = "measured now"


class Stage(StrEnum):
    LOCAL = "local"
    """Local workers alone."""
    HIRING = "hiring"
    """The same, until remote workers are there."""
    TRIAL = "trial"
    """Remote workers alone."""
    REFINING = "refining"
    FIXED = "fixed"
    """The user has fixed the share; the plan is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTerms:
    """What may be decided."""

    plans: tuple[str, ...] = ("samples",)
    most: int = 1
    """Remote workers."""
    share: float | None = None
    """Fixed by the user; None: not fixed."""


class WindowSeen(NamedTuple):
    """One window of batches."""

    rate: float
    """Samples per second that training got."""
    own: float
    """Samples per second of training's own time, without its waiting."""
    wait: float = 0.0
    """Share of the time that training waited."""
    idle: float = 0.0
    """Share of the time that local workers had nothing to do."""
    cpu_s: float = 0.0
    """CPU seconds of this machine per sample: local workers, agent and ferry."""
    seconds: float = 1.0
    workers: int = 0
    """Remote workers that were there."""
    local_workers: int = 1
    stalled: bool = False
    """No batch came for far longer than usual."""
    disturbed: bool = False
    """The ferry was starting, or connecting to workers: that takes cores from local ones."""


class SpentOn(StrEnum):
    """What a window's time was spent on."""

    MEASURING = "measuring"
    """Local workers alone, trials and comparisons."""
    HIRING = "hiring"
    """The wanted workers are not there yet."""
    SETTLED = "settled"


class Spent(NamedTuple):
    """Windows of one phase, together."""

    phase: str
    seconds: float
    samples: float


class Wish(NamedTuple):
    """What the next window is to run with."""

    share: float
    workers: int
    plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    stage: Stage = Stage.LOCAL
    settles: bool = True
    """The next window still has batches of the stage before, and does not count."""
    seen: tuple[WindowSeen, ...] = ()
    """Newest windows with local workers alone."""
    trial: tuple[WindowSeen, ...] = ()
    """Windows of the present trial."""
    training: float = 0.0
    local: float = 0.0
    preparing_s: float = 0.0
    """Metrics with local workers alone; 0: not measured yet."""
    local_workers: int = 0
    """Those that gave them."""
    tried: tuple[PlanMetrics, ...] = ()
    workers: int = 0
    """Hired for trials, or by the decision."""
    plan: str = ""
    """The chosen one."""
    refining: Refinement | None = None
    rest: int = 0
    """Windows until the next trial may begin."""
    patience: int = SHORTEST_REST
    """The next rest."""
    disturbed: int = 0
    """Windows with local workers alone that did not count because of that."""
    unused: int = 0
    """Windows since remote workers were last used."""
    waited_s: float = 0.0
    """How long windows have waited for workers."""
    there: int = 0
    """Remote workers in the last window."""
    short: int = 0
    """A number of workers that did not come; 0: none."""
    reason: str = "local workers alone are measured first"
    origin: str = NOW
    """Where the metrics come from."""
    hoped: float = 0.0
    """Least rate that stored metrics predict, until it is seen; 0: there is nothing to verify."""
    hoped_most: float = 0.0
    kept: Metrics | None = None
    """What a later run may begin with."""
    spent: tuple[Spent, ...] = ()


def metrics_of(course: Course) -> Metrics:
    return Metrics(
        training=course.training, local=course.local, preparing_s=course.preparing_s, plans=course.tried
    )
