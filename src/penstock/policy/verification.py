"""Check stored metrics against the rates that training gets. Pure.

Rule 1: a window agrees if training is as fast as stored, and gets what was predicted, within the factor `AGREES`.
Rule 2: the first `ENOUGH_WINDOWS` that agree, or that do not, decide: one odd window changes nothing.
Rule 3: metrics that do not hold are dropped for the rest of the run, so that a course goes back to measuring once at most.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from penstock.policy.course_state import NOW, Course, OffloadTerms, WindowSeen
from penstock.policy.refinement import SHORTEST_REST, Refinement, at_rest, searched

AGREES = 1.25
ENOUGH_WINDOWS = 3


def after_verifying_window(
    course: Course, refining: Refinement, seen: WindowSeen, terms: OffloadTerms
) -> Course:
    """Accept stored metrics, or drop them and measure. Dropped ones do not come back in this run."""
    if refining.settles:
        return replace(course, refining=replace(refining, settles=False), waited_s=0.0)
    windows = (*course.trial, seen)
    agreed = sum(agrees(course, one, terms) for one in windows)
    if len(windows) - agreed >= ENOUGH_WINDOWS:
        return measured_anew(course, windows)
    if agreed < ENOUGH_WINDOWS:
        return replace(course, trial=windows, waited_s=0.0)
    rates = tuple(one.rate for one in windows)
    known = at_rest(
        refining.setting,
        refining.setting,
        local=course.local,
        rate=median(rates),
        most=refining.most,
    )
    if course.kept is None or course.kept.refined is None:  # a prediction, which no search has corrected
        known = searched(replace(known, of_held=rates, rest=0, patience=SHORTEST_REST))
    return replace(course, trial=(), hoped=0.0, refining=known, waited_s=0.0)


def agrees(course: Course, seen: WindowSeen, terms: OffloadTerms) -> bool:
    """Whether training is as fast as stored, and gets what was predicted. How fast training is beyond all workers does not matter."""
    reach = course.local + max(plan.by(terms.most).remote for plan in course.tried)
    own, stored = min(seen.own, reach), min(course.training, reach)
    is_as_fast = own <= AGREES * stored and stored <= AGREES * own
    return is_as_fast and course.hoped / AGREES <= seen.rate <= AGREES * course.hoped_most


def measured_anew(course: Course, windows: tuple[WindowSeen, ...]) -> Course:
    """Measure as if nothing were stored. Workers that are there stay."""
    own, rate = median(one.own for one in windows), median(one.rate for one in windows)
    reason = (
        f"what was {course.origin} does not hold: {rate:.4g} samples/s where {course.hoped:.4g} were expected, training alone "
        f"{own:.4g} where it was {course.training:.4g}; all is measured again"
    )
    return Course(
        workers=course.workers,
        spent=course.spent,
        reason=reason,
        origin=f"{NOW}: what was {course.origin} did not hold",
    )
