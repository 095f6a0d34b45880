"""Compares the paper's division of batches between workers and the GPU with ours, on random jobs (`sim.division_jobs`).

The paper deals the tasks of a batch to both sides (`policy.paper_split`). Ours has no plan of a batch: a worker that has read a sample leaves
it to the GPU if it is dear and few enough are under way. Both are played by their own rules; ours by the loader's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from penstock.policy.sharing import Sharing
from penstock.sim.division_jobs import DivisionJob, least_s, part_of
from penstock.sim.division_machine import IN_LANE, Division, DivisionMachine
from penstock.sim.division_ours import OurDivision
from penstock.sim.division_paper import PaperDivision

EARLY, SETTLED = 0.25, 0.5
"""Shares of a job's batches: the first ones, in which a division learns, and from where it should have learned."""


class Rule(StrEnum):
    PAPER = "paper"
    """One batch at a time, while the one before it is trained."""
    AHEAD = "paper, ahead"
    """Both sides go on to the next batches of our prefetch window."""
    LARGE = "paper, ahead, large tasks"
    """... and the GPU takes several tasks at once, while many are left."""
    OURS = "ours"
    RANDOM = "random"
    """Ours, with `GpuPrep(choice="random")`."""


class DivisionTimes(NamedTuple):
    """Times of one job, each over the least possible (1 is perfect)."""

    whole: float
    early: float
    """Of the first batches."""
    settled: float
    """Of the second half, by preparing or by training, whichever is slower: else batches that were ready before it count. Only of a job
    whose workers do not change."""


def division_of(job: DivisionJob, rule: Rule, mode: Sharing) -> Division:
    if rule in (Rule.OURS, Rule.RANDOM):
        return OurDivision(job, mode, drawn=rule is Rule.RANDOM)
    return PaperDivision(job, ahead=rule is not Rule.PAPER, large=rule is Rule.LARGE)


def play(job: DivisionJob, rule: Rule, mode: Sharing) -> DivisionTimes:
    machine = DivisionMachine(job, mode, division_of(job, rule, mode))
    machine.run()
    early, half = round(EARLY * job.batches), round(SETTLED * job.batches)
    last = job.batches - job.window - IN_LANE  # until then, batches are prefetched as ever
    ends_s = machine.ends_s
    settled_s = max(times[last - 1] - times[half - 1] for times in (machine.made_s, ends_s))
    return DivisionTimes(
        whole=ends_s[-1] / least_s(job, mode),
        early=ends_s[early - 1] / least_s(part_of(job, 0, early), mode),
        settled=settled_s / least_s(part_of(job, half, last), mode),
    )
