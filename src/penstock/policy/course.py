"""When remote workers are hired, tried and used, while training runs: the profile of FastFlow in the running loop. Pure.

Rule 1: local workers alone come first. Nothing is hired while training waits too little (`offload.THRESHOLD`).
Rule 2: then some remote workers are hired. Local workers go on meanwhile.
Rule 3: each plan is tried for a few windows with remote workers alone. A trial ends at once when its rate collapses or its workers are gone.
Rule 4: `offload.decide` chooses plan and share; `refinement` corrects share and number of workers from then on.
Rule 5: if that does not pay, local workers go on alone, and remote workers are let go after a while. Each new trial waits twice as long.
Rule 6: a window counts only if the wanted remote workers were there, or have been waited for. Until then those that are there get
        their part of the share.
Rule 7: with metrics of an earlier run (`restored`) rules 1 to 3 are skipped. If the first windows contradict them, all is measured, once.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from penstock.policy.course_state import (
    NOW,
    Course,
    OffloadTerms,
    Spent,
    SpentOn,
    Stage,
    WindowSeen,
    Wish,
    metrics_of,
)
from penstock.policy.offload import (
    THRESHOLD,
    Metrics,
    PlanMetrics,
    RefinedSetting,
    decide,
    workers_needed,
)
from penstock.policy.refinement import (
    COLLAPSE,
    LONGEST_REST,
    SHORTEST_REST,
    Observed,
    Profiled,
    Refinement,
    Setting,
    after_window,
    refinement,
)
from penstock.policy.verification import after_verifying_window

LOCAL_WINDOWS, TRIAL_WINDOWS = 4, 3
"""Windows that measure local workers alone, and a plan; beside the first after a change."""
TRIAL_S = 10.0
"""Longest trial of a plan, if one window was counted."""
MOST_DISTURBED = 40
"""Windows that may be left out because the ferry disturbed them; then it is no longer starting, but busy."""
LINGER = 20
"""Windows after which unused remote workers are let go."""
PATIENCE_S = 10.0
"""How long a window waits for the rest of the wanted workers, once one is there."""
NOT_CROWDED = 0.8
"""Remote workers that reach this share of a local one's rate are not in each other's way."""
WAITS = 0.02
"""Share of the time from which training waits."""


def wish(course: Course, terms: OffloadTerms) -> Wish:
    """Return share, workers and plan for the next window."""
    first = course.plan or terms.plans[0]
    let_go = course.unused >= LINGER
    match course.stage:
        case Stage.LOCAL:
            return Wish(0.0, 0 if let_go else course.workers, first)
        case Stage.HIRING:
            return Wish(0.0, course.workers, first)
        case Stage.TRIAL:
            return Wish(1.0, course.workers, terms.plans[len(course.tried)])
        case Stage.FIXED:
            return Wish(terms.share or 0.0, course.workers, first)
    assert course.refining is not None
    setting = course.refining.setting
    share = setting.share
    if course.there > 0 and not is_staffed(course, setting, course.there):
        share *= course.there / setting.workers  # those that are there do their part
    return Wish(share, 0 if let_go and setting.is_local else setting.workers, first)


def hired(course: Course, terms: OffloadTerms) -> int:
    """Return how many workers to ask the cluster for: while two numbers are compared, the larger."""
    wanted = wish(course, terms).workers
    refining = course.refining
    if course.stage is Stage.REFINING and refining is not None and refining.rival is not None:
        return max(wanted, refining.held.workers, refining.rival.workers)
    return wanted


def after(course: Course, seen: WindowSeen, terms: OffloadTerms) -> Course:
    """Return the course after a window."""
    return replace(stepped(course, seen, terms), there=seen.workers, spent=spent_with(course, seen))


def stepped(course: Course, seen: WindowSeen, terms: OffloadTerms) -> Course:
    match course.stage:
        case Stage.LOCAL | Stage.HIRING:
            return after_local_window(course, seen, terms)
        case Stage.TRIAL:
            return after_trial_window(course, seen, terms)
        case Stage.REFINING:
            return after_refining_window(course, seen, terms)
    return course


def phase_of(course: Course, seen: WindowSeen) -> SpentOn:
    refining = course.refining
    match course.stage:
        case Stage.LOCAL:
            return SpentOn.SETTLED if course.local > 0 else SpentOn.MEASURING
        case Stage.HIRING:
            return SpentOn.HIRING
        case Stage.REFINING if refining is not None:
            if not refining.setting.is_local and not is_staffed(course, refining.setting, seen.workers):
                return SpentOn.HIRING
            return SpentOn.MEASURING if refining.comparing else SpentOn.SETTLED
    return SpentOn.MEASURING if course.stage is Stage.TRIAL else SpentOn.SETTLED


def spent_with(course: Course, seen: WindowSeen) -> tuple[Spent, ...]:
    sums = {one.phase: one for one in course.spent}
    phase = phase_of(course, seen).value
    _, seconds, samples = sums.get(phase, Spent(phase, 0.0, 0.0))
    sums[phase] = Spent(phase, seconds + seen.seconds, samples + seen.seconds * seen.rate)
    return tuple(sums.values())


def resumed(course: Course) -> Course:
    """Continue with a new agent, whose remote workers must come first. What was measured, or waited for, stays: epochs may be short."""
    stage = Stage.HIRING if course.stage is Stage.TRIAL else course.stage
    refining = None if course.refining is None else replace(course.refining, settles=True)
    return replace(course, stage=stage, settles=True, refining=refining, there=0)


# ---- local workers alone


def after_local_window(course: Course, seen: WindowSeen, terms: OffloadTerms) -> Course:
    course = replace(course, unused=course.unused + (course.stage is Stage.LOCAL), rest=course.rest - 1)
    if course.settles:
        return replace(course, settles=False)
    if seen.disturbed and course.disturbed < MOST_DISTURBED:
        course = replace(course, disturbed=course.disturbed + 1)
        return course if course.stage is Stage.LOCAL else hiring(course, seen)
    windows = (*course.seen, seen)[-LOCAL_WINDOWS:]
    course = replace(course, seen=windows)
    if len(windows) < LOCAL_WINDOWS:
        return course
    if course.stage is Stage.HIRING and median(one.rate for one in windows) < course.local:
        return hiring(course, seen)  # joining a cluster takes cores from local workers for a while
    course = replace(
        course,
        training=median(one.own for one in windows),
        local=median(one.rate for one in windows),
        preparing_s=median(one.cpu_s for one in windows),
        local_workers=seen.local_workers,
    )
    if min(course.training, course.local, course.preparing_s) <= 0:
        return course
    if terms.share is None:
        verdict = decide(metrics_of(course))
        if course.training < THRESHOLD * course.local:
            return replace(course, stage=Stage.LOCAL, reason=verdict.reason)
        if course.rest > 0:
            return course
    return hires(course, seen, terms) if course.stage is Stage.LOCAL else hiring(course, seen)


def hires(course: Course, seen: WindowSeen, terms: OffloadTerms) -> Course:
    """Ask for as many workers as would end the wait, if each were as fast as one here."""
    each = course.local / max(1, seen.local_workers)
    need = course.training - course.local
    wanted = terms.most if terms.share is not None else max(1, workers_needed(need, each, terms.most))
    reason = (
        f"training could be {course.training / course.local:.3g} times as fast as with local workers alone "
        f"({course.local:.4g} samples/s); {wanted} remote workers are hired to measure them"
    )
    return replace(
        course,
        stage=Stage.HIRING,
        workers=wanted,
        tried=(),
        trial=(),
        plan="",
        unused=0,
        waited_s=0.0,
        reason=reason,
        origin=course.origin if course.origin.startswith(NOW) else NOW,
    )


def hiring(course: Course, seen: WindowSeen) -> Course:
    """Try the first plan once the workers are there, or the first of them for long."""
    if seen.workers <= 0:
        return replace(course, waited_s=0.0)
    if seen.workers < course.workers and course.waited_s < PATIENCE_S:
        return replace(course, waited_s=course.waited_s + seen.seconds)
    return replace(course, stage=Stage.TRIAL, settles=True)


# ---- remote workers alone


def after_trial_window(course: Course, seen: WindowSeen, terms: OffloadTerms) -> Course:
    if seen.workers <= 0:
        return gives_up(course, "no offloading: remote workers were lost while they were tried")
    windows = course.trial if course.settles else (*course.trial, seen)
    is_slow = seen.stalled or (not course.settles and seen.rate < (1.0 - COLLAPSE) * course.local)
    is_long = sum(one.seconds for one in windows) >= TRIAL_S
    if not is_slow and len(windows) < TRIAL_WINDOWS and not is_long:
        return replace(course, trial=windows, settles=False)
    measured = windows or (seen,)
    plan = PlanMetrics(
        name=terms.plans[len(course.tried)],
        remote=median(one.rate for one in measured),
        handling_s=median(one.cpu_s for one in measured),
        workers=max(1, min(one.workers for one in measured)),
    )
    course = replace(course, tried=(*course.tried, plan), trial=(), settles=True)
    return course if len(course.tried) < len(terms.plans) else decided(course, terms)


def decided(course: Course, terms: OffloadTerms) -> Course:
    """Decide with the number of workers that each plan needs."""
    metrics = metrics_of(course)
    course = replace(course, seen=(), trial=(), settles=True, waited_s=0.0, kept=metrics)
    if terms.share is not None:
        best = max((plan.by(terms.most) for plan in course.tried), key=metrics.estimate)
        reason = f"{terms.share:.0%} by {best.name}, the best plan at the fixed share: {best.remote:.4g} samples/s there"
        return replace(course, stage=Stage.FIXED, plan=best.name, workers=terms.most, reason=reason)
    needed = {plan.name: needed_by(course, plan, terms) for plan in course.tried}
    decision = decide(replace(metrics, plans=tuple(plan.by(needed[plan.name]) for plan in course.tried)))
    if not decision.offload:
        return gives_up(course, decision.reason)
    workers = needed[decision.plan]
    trial = next(plan for plan in course.tried if plan.name == decision.plan)
    crowded = trial.by(1).remote < NOT_CROWDED * course.local / max(1, course.local_workers)
    profiled = Profiled(course.local, trial.remote if trial.workers == workers else 0.0, crowded)
    return replace(
        course,
        stage=Stage.REFINING,
        plan=decision.plan,
        workers=workers,
        refining=refinement(decision, workers=workers, most=terms.most, profiled=profiled),
        reason=decision.reason,
        unused=0,
        patience=SHORTEST_REST,
    )


def needed_by(course: Course, plan: PlanMetrics, terms: OffloadTerms) -> int:
    """Return the workers that end the wait by a plan: the paper's Lower over the rate of one."""
    relative = plan.handling_s / course.preparing_s
    lower = (course.training - course.local) * (1.0 + relative)
    return max(1, workers_needed(lower, plan.by(1).remote, terms.most))


def gives_up(course: Course, reason: str) -> Course:
    """Go on with local workers alone; the next trial waits twice as long."""
    return replace(
        course,
        stage=Stage.LOCAL,
        seen=(),
        trial=(),
        settles=True,
        refining=None,
        rest=course.patience,
        patience=min(LONGEST_REST, 2 * course.patience),
        unused=0,
        reason=reason,
    )


# ---- refined


def after_refining_window(course: Course, seen: WindowSeen, terms: OffloadTerms) -> Course:
    refining = course.refining
    assert refining is not None
    setting, waits = refining.setting, seen.wait > WAITS
    if not setting.is_local and not is_staffed(course, setting, seen.workers):
        waited_s = course.waited_s + (seen.seconds if seen.workers else 0.0)
        short = setting.workers if waited_s >= PATIENCE_S else course.short
        return replace(course, refining=replace(refining, settles=True), waited_s=waited_s, short=short)
    if course.hoped > 0:
        return after_verifying_window(course, refining, seen, terms)
    is_over = setting.is_local and not refining.comparing
    if is_over and refining.rest <= 1 and waits and len(terms.plans) > 1:
        return hires(course, seen, terms)  # by another plan, perhaps
    searched, refining = refining.comparing, after_window(refining, Observed(seen.rate, waits, seen.idle))
    if searched and not refining.comparing:
        course = replace(course, kept=kept_after(course, refining))
    short = 0 if seen.workers >= course.short else course.short
    unused = course.unused + 1 if refining.setting.is_local and not refining.comparing else 0
    return replace(course, refining=refining, unused=unused, waited_s=0.0, short=short)


def is_staffed(course: Course, setting: Setting, there: int) -> bool:
    return there >= setting.workers or (there > 0 and 0 < course.short <= setting.workers)


def kept_after(course: Course, refining: Refinement) -> Metrics | None:
    """Return what to keep after a search: the metrics, with what it ended with."""
    share, workers = refining.held
    found = RefinedSetting(
        plan=course.plan, share=share, workers=max(1, workers), rate=refining.usual or course.local
    )
    return None if course.kept is None else replace(course.kept, refined=found)
