"""A course as numbers to show, and as text to pass on. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from penstock.policy.course import wish
from penstock.policy.course_state import Course, OffloadTerms, Spent, SpentOn, Stage, WindowSeen, metrics_of
from penstock.policy.offload import PlanMetrics, metrics_from, share_of
from penstock.policy.refinement import Observed, Profiled, Refinement, Setting, SharePoint


def told(course: Course, terms: OffloadTerms) -> dict[str, Any]:
    """Return the decision in numbers."""
    now = wish(course, terms)
    return {
        "stage": course.stage.value,
        "plan": now.plan,
        "share": now.share,
        "workers_wanted": now.workers,
        "training_rate": course.training,
        "local_rate": course.local,
        "preparing_s": course.preparing_s,
        "plans": [
            {**asdict(plan), "share": share_of(metrics_of(course), plan) if course.local > 0 else 0.0}
            for plan in course.tried
        ],
        "reason": course.reason,
        "rates_from": course.origin if course.local > 0 else "",
        "verified": course.hoped <= 0,
        "time": time_spent(course),
    }


def time_spent(course: Course) -> dict[str, dict[str, float]]:
    """Return for each phase its seconds, its samples, and those that the present choice would have given beyond them."""
    usual = course.refining.usual if course.refining is not None else 0.0
    rate = usual or course.local
    sums = {one.phase: one for one in course.spent}
    found = {}
    for phase in SpentOn:
        _, seconds, samples = sums.get(phase.value, Spent(phase.value, 0.0, 0.0))
        lost = 0.0 if phase is SpentOn.SETTLED else max(0.0, rate * seconds - samples)
        found[phase.value] = {"seconds": seconds, "samples": samples, "lost_samples": lost}
    return found


def packed(course: Course) -> str:
    """Return a course as JSON."""
    facts = asdict(course)
    if course.refining is not None:
        facts["refining"]["tried"] = sorted(course.refining.tried)
    return json.dumps(facts)


def unpacked(text: str) -> Course:
    """Return the course that `packed` wrote."""
    facts = json.loads(text)
    held = facts["refining"]
    if held is not None:
        for name in ("setting", "held", "rival", "hope"):
            held[name] = None if held[name] is None else Setting(*held[name])
        held["seen"] = tuple(SharePoint(*one) for one in held["seen"])
        held["recent"] = tuple(Observed(*one) for one in held["recent"])
        held["profiled"] = Profiled(*held["profiled"])
        held["tried"] = frozenset(held["tried"])
        for name in ("turn", "of_held", "of_rival"):
            held[name] = tuple(held[name])
        facts["refining"] = Refinement(**held)
    for name in ("seen", "trial"):
        facts[name] = tuple(WindowSeen(*one) for one in facts[name])
    facts["tried"] = tuple(PlanMetrics(**one) for one in facts["tried"])
    facts["spent"] = tuple(Spent(*one) for one in facts["spent"])
    facts["kept"] = None if facts["kept"] is None else metrics_from(facts["kept"])
    return Course(**{**facts, "stage": Stage(facts["stage"])})
