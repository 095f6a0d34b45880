"""Whether remote workers pay, and how much to give them (FastFlow, Algorithm 1). Pure.

Rule 1: no offloading if training waits too little: training's own rate over the local rate is below the threshold.
Rule 2: the plan with the largest `local * (1 - handling / preparing) + remote` wins. Ties: the first.
Rule 3: offload all that remote workers can do if that ends the wait; otherwise balance local and remote rates.
Rule 4 (not in the paper): a plan that is predicted to gain less than `LEAST_GAIN` over local workers alone is no candidate: delays and
        the search would cost more.
Rule 5 (not in the paper): where rates are balanced, handling may count too. The paper's share leaves local workers too much
        if CPUs here are the limit, the other too little if they are not: the better by both predictions together is taken.

Rates are samples per second. Costs are CPU seconds of this machine per sample: user and system, children included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

THRESHOLD = 1.1
"""Least possible speed-up worth remote workers (the paper's SpeedUpThreshold)."""
LEAST_GAIN = 0.05
HANDLING_S, HANDLING_S_PER_BYTE = 20e-6, 1e-9
"""Estimated CPU time to receive a sample and write it into its batch; `worth_asking` has nothing better."""
ENOUGH = 0.99
"""Share of the reachable rate from which more workers are not worth asking for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMetrics:
    """One way to divide the pipeline between here and there."""

    name: str
    remote: float
    """Rate when everything is prepared remotely: the paper's Rthp."""
    handling_s: float
    """CPU seconds here per offloaded sample: the paper's Ocycle."""
    workers: int = 1
    """Remote workers that gave this rate."""

    def __post_init__(self) -> None:
        if not (self.remote >= 0 and self.handling_s >= 0 and self.workers >= 1):
            raise ValueError(f"rate and cost of a plan must be >= 0, its workers >= 1: {self}")

    def by(self, workers: int) -> PlanMetrics:
        """Return the plan with another number of workers, each as fast."""
        return replace(self, remote=self.remote * workers / self.workers, workers=workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefinedSetting:
    """The setting that `refinement` chose in the end."""

    plan: str
    share: float
    """0: local workers alone."""
    workers: int
    rate: float
    """Samples per second that training got."""

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and self.workers >= 1 and self.rate > 0):
            raise ValueError(f"no setting: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What a profile measured."""

    training: float
    """Training's own rate, if batches were always ready: the paper's Gthp."""
    local: float
    """Rate with local workers alone: the paper's Lthp."""
    preparing_s: float
    """CPU seconds here per sample prepared locally: the paper's Pcycle."""
    plans: tuple[PlanMetrics, ...] = ()
    refined: RefinedSetting | None = None
    """Of the run that measured this, if it came so far."""

    def __post_init__(self) -> None:
        if not (self.training > 0 and self.local > 0 and self.preparing_s > 0):
            raise ValueError(f"rates and costs must be > 0: {self}")

    def relative(self, plan: PlanMetrics) -> float:
        """Return the cost of handling over that of preparing: O / P."""
        return plan.handling_s / self.preparing_s

    def estimate(self, plan: PlanMetrics) -> float:
        """Return the paper's estimate, by which plans are compared. Not a prediction: it may exceed training's rate."""
        return self.local * (1.0 - self.relative(plan)) + plan.remote

    def expected(self, plan: PlanMetrics, share: float) -> float:
        """Return the rate at a share: the least that training, remote workers, local workers and the CPUs here allow.

        The CPUs here do at least what they did in the profile, whichever part of it used them most.
        """
        cpu = max(self.local * self.preparing_s, plan.remote * plan.handling_s)
        cost_s = (1.0 - share) * self.preparing_s + share * plan.handling_s
        return min(self.at_most(plan, share), cpu / cost_s if cost_s > 0 else math.inf)

    def at_most(self, plan: PlanMetrics, share: float) -> float:
        """Return the same where the CPUs here are no limit, as for samples that wait for a disk."""
        return min(
            self.training,
            plan.remote / share if share > 0 else math.inf,
            self.local / (1.0 - share) if share < 1 else math.inf,
        )


def metrics_from(facts: Mapping[str, Any]) -> Metrics:
    """Return metrics from what `dataclasses.asdict` made of them; TypeError, ValueError or KeyError if that cannot be."""
    plans = tuple(PlanMetrics(**plan) for plan in facts["plans"])
    refined = None if facts.get("refined") is None else RefinedSetting(**facts["refined"])
    found = Metrics(**{**facts, "plans": plans, "refined": refined})
    rates = [found.training, found.local, found.preparing_s]
    rates += [value for plan in plans for value in (plan.remote, plan.handling_s)]
    if not all(map(math.isfinite, rates)):
        raise ValueError(f"rates and costs must be finite: {found}")
    return found


class Decision(NamedTuple):
    offload: bool
    plan: str
    """Empty without offloading."""
    share: float
    """Share of samples prepared remotely."""
    expected: float
    """Predicted rate."""
    reason: str


def decide(metrics: Metrics, threshold: float = THRESHOLD) -> Decision:
    """Return whether to offload, by which plan, and which share."""
    local = metrics.local
    ratio = metrics.training / local
    if ratio < threshold:
        return stays(metrics, f"training could be {ratio:.2f}x as fast, less than {threshold:g}x")
    offers = [(plan, share_of(metrics, plan)) for plan in metrics.plans]
    useful = [offer for offer in offers if metrics.expected(*offer) >= (1.0 + LEAST_GAIN) * local]
    if not useful:
        costs = ", ".join(
            f"{plan.name}: {plan.remote:.4g}/s remotely, {metrics.relative(plan):.2g} of a sample's CPU time to handle"
            for plan in metrics.plans
        )
        return stays(
            metrics,
            f"no plan is {LEAST_GAIN:.0%} faster than {local:.4g} samples/s ({costs or 'there is none'})",
        )
    plan, share = max(useful, key=lambda offer: metrics.estimate(offer[0]))
    expected = metrics.expected(plan, share)
    reason = (
        f"offload {share:.0%} by {plan.name}: {local:.4g} samples/s here, {plan.remote:.4g} there, "
        f"handling costs {metrics.relative(plan):.2g} of preparing; expect {expected:.4g} of {metrics.training:.4g}"
    )
    return Decision(True, plan.name, share, expected, reason)


def stays(metrics: Metrics, why: str) -> Decision:
    return Decision(False, "", 0.0, metrics.local, f"no offloading: {why}")


def share_of(metrics: Metrics, plan: PlanMetrics) -> float:
    """Return the share to offload: lines 8 to 13 of the algorithm, at most 1; or the balance that counts handling (rule 5)."""
    upper = plan.remote
    lower = (metrics.training - metrics.local) * (1.0 + metrics.relative(plan))
    whole = metrics.training if lower < upper else metrics.local + plan.remote
    paper = min(1.0, max(0.0, upper / whole))
    even = balanced(metrics.local, plan.remote, max(0.0, 1.0 - metrics.relative(plan)))
    return max(paper, even, key=lambda share: metrics.expected(plan, share) * metrics.at_most(plan, share))


def balanced(local: float, remote: float, counts: float = 1.0) -> float:
    """Return the share at which local and remote workers are limits alike. `counts`: how much of an offloaded sample's
    local work is saved."""
    whole = local + counts * remote
    return min(1.0, remote / whole) if whole > 0 else 0.0


def workers_needed(need: float, rate_per_worker: float, most: int) -> int:
    """Return the workers for a rate of `need`; 0 if their rate is unknown or none is needed."""
    if need <= 0 or rate_per_worker <= 0 or most <= 0:
        return 0
    ratio = need / rate_per_worker
    return most if ratio >= most else math.ceil(ratio - 1e-9)


class RemoteHelp(NamedTuple):
    """Remote workers that would help."""

    workers: int
    expected: float
    """Predicted rate with them."""
    limit: str
    """What would limit the run then: "training", "link" or "workers"."""


def worth_asking(
    *,
    training: float,
    local: float,
    preparing_s: float,
    sample_bytes: float,
    link_bytes_s: float,
    most: int,
    handling_s: float | None = None,
    threshold: float = THRESHOLD,
) -> RemoteHelp | None:
    """Return how many remote workers as fast as ours would help, without having any; None if too little.

    A worker prepares one sample at a time on one core. `handling_s` is estimated from a sample's size if None.
    """
    if training < threshold * local or most <= 0:
        return None
    if handling_s is None:
        handling_s = HANDLING_S + HANDLING_S_PER_BYTE * sample_bytes
    kept = (
        1.0 - handling_s / preparing_s
    )  # of each remote sample, beside the local work that handling it displaces
    if kept <= 0:
        return None
    wanted = (training - local) / kept
    by_link = link_bytes_s / sample_bytes if sample_bytes > 0 else math.inf
    by_cpu = local * preparing_s / handling_s if handling_s > 0 else math.inf
    by_workers = most / preparing_s
    remote = min(wanted, by_link, by_cpu, by_workers)
    expected = min(training, local + remote * kept)
    if expected < threshold * local:
        return None
    limit = "training" if remote == wanted else "link" if remote == by_link else "workers"
    if remote == by_cpu < min(by_link, by_workers):
        limit = "local CPUs"
    enough = max(0.0, ENOUGH * expected - local) / kept
    return RemoteHelp(workers_needed(enough, 1.0 / preparing_s, most), expected, limit)
