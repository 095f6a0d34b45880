"""A course that begins with metrics of an earlier run: straight to the decision. Pure."""

from __future__ import annotations

from dataclasses import replace

from penstock.policy.course import LINGER, decided
from penstock.policy.course_state import Course, OffloadTerms, Stage
from penstock.policy.offload import THRESHOLD, Metrics
from penstock.policy.refinement import LEAST, Setting, at_rest


def restored(metrics: Metrics, terms: OffloadTerms, origin: str) -> Course:
    """Return a course that has decided by these metrics, and must verify them. If a plan is missing, or training waited too little for
    remote workers to be measured, nothing is known that local windows would not tell for nothing: it begins as without metrics."""
    plans = {plan.name: plan for plan in metrics.plans}
    if any(name not in plans for name in terms.plans) or metrics.training < THRESHOLD * metrics.local:
        return Course()
    tried = tuple(plans[name] for name in terms.plans)
    known = Course(
        training=metrics.training, local=metrics.local, preparing_s=metrics.preparing_s, tried=tried
    )
    course = replace(decided(known, terms), origin=origin, kept=metrics)
    if course.stage is not Stage.REFINING or course.refining is None:
        return course
    hope, plan = course.refining.setting, plans[course.plan].by(course.workers)
    setting, refined = hope, metrics.refined
    rate, most = metrics.expected(plan, hope.share), metrics.at_most(plan, hope.share)
    if refined is not None and refined.plan in terms.plans and refined.workers <= terms.most:
        share = max(LEAST, refined.share) if refined.share > 0 else 0.0
        setting, rate, most = Setting(share, refined.workers), refined.rate, refined.rate
        course = replace(course, plan=refined.plan, workers=refined.workers)
    refining = at_rest(setting, hope, local=metrics.local, rate=rate, most=terms.most)
    if setting.is_local:  # nothing to verify, and nobody to hire
        return replace(course, refining=refining, unused=LINGER)
    return replace(course, refining=refining, hoped=rate, hoped_most=most)
