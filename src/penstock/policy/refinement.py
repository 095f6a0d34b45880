"""Corrects the offloaded share, and the number of remote workers, while training runs. Pure.

A profile errs, and machines and links change. So settings are compared in turns, by the median rate of a few windows of batches:

Rule 1: remote workers must beat local workers alone. Unless that is obvious from the profile's rates, both are measured in
        turns. If remote workers are slower, a smaller share is tried, balanced for the rate at which they delivered; if the
        difference does not show, a larger one. If none pays, local workers go on alone; each retry waits twice as long.
Rule 2: another setting is taken if it gains 1 % and more than the error. Otherwise both are measured again, in turns; after
        `ROUNDS` turns the present setting stays.
Rule 3: raise the share until that stops to help. Then the rates below and above tell where the limits of local and of remote
        workers cross; try that, and the middle of wide gaps. Then try other numbers of workers.
Rule 4: then rest. A search repeated without result doubles the rest.
Rule 5: question the setting when it becomes slower than it was, or than local workers alone, or when local workers lack work
        while training waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from statistics import median
from typing import NamedTuple

from penstock.policy.offload import Decision, balanced

TURN, SHORTEST_TURN = 4, 2
"""Windows per turn of a setting; and those that suffice if they differ by `OBVIOUS`."""
ROUNDS, HOPELESS_ROUNDS = 5, 2
"""Turns per setting before a comparison ends undecided; fewer if the other setting is not even ahead."""
OBVIOUS = 0.2
COLLAPSE = 0.5
"""One window slower by this share ends a turn; `COLLAPSED` in a row question the present setting."""
COLLAPSED = 3
ERRORS = 2.0
"""Standard errors a difference must exceed."""
NORMAL = 1.4826 * 1.2533
"""From the median deviation to the standard error of a median, for normal deviations."""
CLEARLY = 0.01
"""Least gain worth a change."""
CHANGED = 0.05
"""A setting is doubtful when slower, or faster, than it was by this share."""
IDLER = 0.15
"""Increase in local workers' idle time, while training waits, that questions a setting."""
FAR = 2.0
"""Beyond this multiple of the local rate, only doubts and idle local workers ask for local workers alone."""
RECENT, DOUBTS = 8, 6
"""Newest windows, and how many of them must be doubtful."""
LEAST = 0.02
"""Least share worth offloading."""
NEARLY_ALL = 0.95
"""A share raised beyond this becomes 1."""
SHOWS = 1.1
"""Raise the share so far that this gain is possible."""
ODDS, MOST_ODDS, GENTLE = 2.0, 4.0, 1.25
"""Factor on offloaded : local samples by which the share is first raised, and at most (it squares with each success); and where
nothing suggests a change."""
APART = 0.03
"""Least difference in rate to expect between two shares that are tried."""
WIDE = 1.4
"""The middle of a gap is tried if its odds differ by this factor from both sides."""
SMALLER, TRIES = 0.8, 3
"""Factor on the share where a smaller one is tried; and shares tried after one lost to local workers."""
KEEP_UP = 1.1
"""Margin of a measured rate that excludes a share."""
MORE_WORKERS = 1.5
SHORTEST_REST, LONGEST_REST = 64, 256
"""Windows between searches."""


class Setting(NamedTuple):
    share: float
    """Of the samples, prepared remotely; 0: local workers alone."""
    workers: int = 1
    """Remote workers in use."""

    @property
    def is_local(self) -> bool:
        return self.share <= 0


class Observed(NamedTuple):
    """One window of batches."""

    rate: float
    """Samples per second that training got, from all workers."""
    waits: bool = True
    """Whether training waited for batches."""
    idle: float = 0.0
    """Share of the time that local workers had nothing to do."""


class SharePoint(NamedTuple):
    """The median rate of a share tried in this search."""

    share: float
    rate: float


class Profiled(NamedTuple):
    """Rates that the profile measured; 0: unknown."""

    local: float = 0.0
    """Of local workers alone."""
    remote: float = 0.0
    """Of the setting's remote workers alone."""
    crowded: bool = True
    """Whether each of them was slower than one here: fewer might do more."""


NO_PROFILE = Profiled()


@dataclass(frozen=True, slots=True)
class Refinement:
    setting: Setting
    """For the next window."""
    held: Setting
    """The present choice, which others are compared with."""
    rival: Setting | None = None
    """The other one, while two are compared."""
    turn: tuple[float, ...] = ()
    """Rates of the present turn."""
    settles: bool = True
    """The next window still has batches of the setting before, and does not count."""
    of_held: tuple[float, ...] = ()
    of_rival: tuple[float, ...] = ()
    seen: tuple[SharePoint, ...] = ()
    """This search's shares, with the present number of workers. Share 0: local workers alone."""
    odds: float = ODDS
    tries: int = 0
    """Smaller shares tried since one lost to local workers."""
    tried: frozenset[int] = frozenset()
    """Numbers of workers tried in this search."""
    recent: tuple[Observed, ...] = ()
    """Newest windows at rest."""
    idle: float | None = None
    """How idle local workers were when the setting first rested; None: not known yet."""
    rest: int = 0
    """Windows to rest still; counted while nothing is compared."""
    patience: int = SHORTEST_REST
    """The next rest."""
    hope: Setting | None = None
    """What to try when local workers go on alone: the setting that last beat them, or the decision's. None: nothing."""
    most: int = 1
    """Remote workers available."""
    profiled: Profiled = NO_PROFILE
    """Until the first comparison ends."""

    @property
    def comparing(self) -> bool:
        return self.rival is not None

    @property
    def local(self) -> float:
        """The rate of local workers alone, measured in this search; 0: unknown."""
        return next((one.rate for one in self.seen if one.share == 0), 0.0)

    @property
    def usual(self) -> float:
        """The rate of the present choice, measured in this search; 0: unknown."""
        return next((one.rate for one in self.seen if one.share == self.held.share), 0.0)


def refinement(
    decision: Decision, *, workers: int = 1, most: int | None = None, profiled: Profiled = NO_PROFILE
) -> Refinement:
    """Begin with the decision's share, compared with local workers alone. Without offloading nothing is tried."""
    top = workers if most is None else most
    alone = Setting(0.0, workers)
    if not decision.offload or decision.share <= 0:
        return Refinement(alone, alone, most=top)
    first = Setting(max(LEAST, decision.share), workers)
    tried = frozenset() if profiled.crowded else frozenset({int(workers / MORE_WORKERS)})
    return Refinement(first, first, rival=alone, hope=first, most=top, profiled=profiled, tried=tried)


def at_rest(setting: Setting, hope: Setting, *, local: float, rate: float, most: int) -> Refinement:
    """Begin with a setting that an earlier search has found, and its rate. Local workers alone are questioned sooner: remote ones may be
    better now."""
    seen = (SharePoint(0.0, local),) + (() if setting.is_local else (SharePoint(setting.share, rate),))
    rest = SHORTEST_REST if setting.is_local else LONGEST_REST
    return Refinement(setting, setting, seen=seen, hope=hope, most=most, rest=rest, patience=rest)


def after_window(state: Refinement, observed: Observed) -> Refinement:
    """Return the state, and the next window's setting, after a window."""
    if state.settles:
        return replace(state, settles=False)
    if state.rival is None:
        return resting(state, observed)
    turn = (*state.turn, observed.rate)
    is_rival = state.setting == state.rival
    if not is_enough(turn, state.of_held if is_rival else state.of_rival):
        return replace(state, turn=turn)
    if is_rival:
        state = replace(state, turn=(), of_rival=(*state.of_rival, *turn))
    else:
        state = replace(state, turn=(), of_held=(*state.of_held, *turn))
    return after_turn(state)


def is_enough(turn: Sequence[float], other: Sequence[float]) -> bool:
    """Whether a turn may end: it is long, or all its windows differ much from the other setting's."""
    if len(turn) >= TURN or not other:
        return len(turn) >= TURN
    usual = median(other)
    if turn[-1] < (1.0 - COLLAPSE) * usual:
        return True
    slower = all(each < (1.0 - OBVIOUS) * usual for each in turn)
    faster = all(each > (1.0 + OBVIOUS) * usual for each in turn)
    return len(turn) >= SHORTEST_TURN and (slower or faster)


def after_turn(state: Refinement) -> Refinement:
    held, rival = state.of_held, state.of_rival
    assert state.rival is not None
    if not rival and min(held) > (1.0 + OBVIOUS) * state.profiled.local > 0:
        return after_local(
            replace(state, of_rival=(state.profiled.local,)), remote_wins=True, is_slower=False
        )
    if not held or not rival:
        return switched(state, state.rival if not rival else state.held)
    against_local = state.rival.is_local
    gain, error = gained(rival, held) if against_local else gained(held, rival)
    rounds = min(len(held), len(rival)) / TURN
    undecided = abs(gain - CLEARLY) <= error
    if undecided and rounds < (ROUNDS if gain > 0 else HOPELESS_ROUNDS):
        fewer = state.held if len(held) < len(rival) else state.rival
        other = state.held if state.setting == state.rival else state.rival
        return switched(state, other if len(held) == len(rival) else fewer)
    wins = gain > max(CLEARLY, error)
    return after_local(state, wins, gain < -error) if against_local else after_move(state, wins)


def switched(state: Refinement, setting: Setting) -> Refinement:
    """Continue with another setting; its first window does not count."""
    return replace(state, setting=setting, settles=setting != state.setting, turn=())


def gained(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Return the relative gain in rate and its error. Deviations of both count together, as each alone is few."""
    was, now = median(before), median(after)
    if was <= 0 or now <= 0:
        return (1.0 if now > was else -1.0 if was > now else 0.0), 0.0
    deviations = [abs(each / was - 1.0) for each in before] + [abs(each / now - 1.0) for each in after]
    error = ERRORS * NORMAL * median(deviations) * sqrt(1.0 / len(before) + 1.0 / len(after))
    return now / was - 1.0, error * now / was


# ---- against local workers alone


def after_local(state: Refinement, remote_wins: bool, is_slower: bool) -> Refinement:
    """The present setting beats local workers alone, or another share is tried, or local workers go on alone. A share that
    is not slower may be too small to show a gain."""
    local, rate, share = median(state.of_rival), median(state.of_held), state.held.share
    remote = state.profiled.remote
    state = replace(state, profiled=NO_PROFILE)
    if remote_wins:
        seen: tuple[SharePoint, ...] = (SharePoint(0.0, local), SharePoint(share, rate))
        seen += (
            (SharePoint(1.0, remote),) if 0 < remote < rate and share < 1 else ()
        )  # else it is worth a try
        return searched(replace(state, seen=seen, hope=state.held, tries=0))
    larger = moved(share, MOST_ODDS)
    smaller = balanced(local, share * rate)
    other = smaller if is_slower or share > SMALLER * larger else larger
    if (LEAST <= other < (1.0 - CHANGED) * share or other > share) and state.tries < TRIES:
        tried = state.held._replace(share=other)
        return switched(replace(state, held=tried, of_held=(), tries=state.tries + 1), tried)
    alone = state.held._replace(share=0.0)
    state = replace(state, held=alone, rival=None, of_held=(), of_rival=(), tries=0, idle=None)
    return rested(state, alone)


# ---- moves


def after_move(state: Refinement, wins: bool) -> Refinement:
    rival = state.rival
    assert rival is not None
    held_rate, rate = median(state.of_held), median(state.of_rival)
    if rival.workers != state.held.workers:
        state = replace(state, tried=state.tried | {rival.workers})
        if wins:  # shares seen with fewer workers say nothing
            state = replace(
                state, seen=(SharePoint(0.0, state.local), SharePoint(rival.share, rate)), odds=ODDS
            )
    else:
        others = tuple(one for one in state.seen if one.share not in (state.held.share, rival.share))
        state = replace(
            state, seen=(*others, SharePoint(state.held.share, held_rate), SharePoint(rival.share, rate))
        )
        is_up = rival.share > state.held.share
        state = replace(state, odds=min(MOST_ODDS, state.odds**2) if wins and is_up else state.odds)
    if wins:
        patience = SHORTEST_REST if rate > (1.0 + CHANGED) * held_rate else state.patience
        state = replace(state, held=rival, hope=rival, of_held=state.of_rival, patience=patience, idle=None)
    return searched(state)


def searched(state: Refinement) -> Refinement:
    """Compare the next setting worth a try; rest if there is none."""
    following = next_share(state) or next_workers(state)
    if following is not None:
        state = replace(state, rival=following, of_rival=(), of_held=state.of_held[-ROUNDS * TURN :])
        return switched(state, following)
    return rested(replace(state, rival=None, odds=ODDS, tried=frozenset()), state.held)


def rested(state: Refinement, setting: Setting) -> Refinement:
    """Rest; twice as long the next time."""
    rest, patience = state.patience, min(LONGEST_REST, 2 * state.patience)
    return switched(replace(state, recent=(), rest=rest, patience=patience), setting)


def next_share(state: Refinement) -> Setting | None:
    """Return the next share worth a try: a larger one; where limits cross; the middle of a wide gap; a smaller one."""
    share = state.held.share
    below = max((one for one in state.seen if one.share < share), default=SharePoint(0.0, 0.0))
    above = min((one for one in state.seen if one.share > share), default=None)
    here = next(one for one in state.seen if one.share == share)
    wanted: list[float] = []
    if above is None:
        saved = max(LEAST, saved_at(here, state.local))
        shows = (1.0 - (1.0 - saved * share) / SHOWS) / saved  # if local workers are the limit
        wanted.append(min(1.0, max(moved(share, state.odds), shows)))
    elif state.local > 0:
        remote = above.share * above.rate
        wanted += [balanced(state.local, remote, saved_at(one, state.local)) for one in (here, below)]
        wanted = [one for one in wanted if below.share < one < above.share]
        if odds_of(above.share) > WIDE**2 * odds_of(share):
            wanted.append(middle(share, above.share))
    if below.share == 0:
        wanted += [SMALLER * share] if state.odds >= ODDS else []
    elif odds_of(share) > WIDE**2 * odds_of(below.share):
        wanted.append(middle(below.share, share))
    steep = max(1.0 / share, here.rate / state.local if state.local > 0 else 0.0)
    worth = [one for one in wanted if one >= LEAST and may_gain(one, here, above, state.local)]
    for one in worth:
        if all(abs(one - other.share) * steep >= APART for other in state.seen):
            return state.held._replace(share=one)
    return None


def may_gain(share: float, here: SharePoint, above: SharePoint | None, local: float) -> bool:
    """Whether neither side's measured rate excludes that a share is faster. Remote workers were the limit above if that was slower; local
    ones can do at least what they do here, even if a disturbed window said less."""
    able = max(local, (1.0 - here.share) * here.rate)
    if local > 0 and KEEP_UP * able < (1.0 - share) * here.rate:
        return False
    if above is None or above.rate >= here.rate or not here.share < share < above.share:
        return True
    return KEEP_UP * above.share * above.rate > share * here.rate


def saved_at(point: SharePoint, local: float) -> float:
    """Return how much of an offloaded sample's local work is saved, if local workers limit this point."""
    if point.share <= 0 or point.rate <= 0:
        return 1.0
    return min(1.0, max(0.0, (1.0 - local / point.rate) / point.share))


def next_workers(state: Refinement) -> Setting | None:
    """Return more workers, or fewer if they may be in each other's way. Both pay only with a larger share."""
    share, workers = state.held
    more, fewer = min(state.most, ceil(workers * MORE_WORKERS)), int(workers / MORE_WORKERS)
    if more > workers and more not in state.tried:
        return Setting(moved(share, more / workers), more)
    if fewer >= 1 and fewer not in state.tried and state.odds >= ODDS:
        return Setting(moved(share, GENTLE), fewer)
    return None


def odds_of(share: float) -> float:
    bounded = min(1.0 - LEAST, max(LEAST, share))
    return bounded / (1.0 - bounded)


def moved(share: float, factor: float) -> float:
    odds = odds_of(share) * factor
    moved_to = odds / (1.0 + odds)
    return 1.0 if moved_to >= NEARLY_ALL else moved_to


def middle(low: float, high: float) -> float:
    return moved(low, sqrt(odds_of(high) / odds_of(low)))


# ---- at rest


def resting(state: Refinement, observed: Observed) -> Refinement:
    recent = (*state.recent, observed)[-RECENT:]
    idle = (
        median(each.idle for each in recent) if state.idle is None and len(recent) == RECENT else state.idle
    )
    state = replace(state, recent=recent, rest=state.rest - 1, idle=idle)
    if state.held.is_local:
        return retried(state) if state.rest <= 0 and observed.waits and state.hope is not None else state
    rates = tuple(each.rate for each in recent)
    if is_collapsed(state):
        return questioned(state, rates[-COLLAPSED:])
    if is_doubtful(state):
        return questioned(state, rates[-TURN:])
    is_idle = observed.waits and median(each.idle for each in recent) > IDLER
    if is_idle:
        state = replace(state, rest=min(state.rest, SHORTEST_REST))
    if state.rest <= 0 and (is_idle or median(rates) < FAR * state.local):
        return questioned(replace(state, odds=GENTLE), rates[-TURN:])
    return searched_again(state, rates) if state.rest <= 0 else state


def is_collapsed(state: Refinement) -> bool:
    newest, least = state.recent[-COLLAPSED:], (1.0 - COLLAPSE) * state.usual
    return len(newest) == COLLAPSED and all(each.waits and each.rate < least for each in newest)


def is_doubtful(state: Refinement) -> bool:
    """Whether most recent windows are slower or faster than usual, or local workers lack work that they had before."""
    usual, local = state.usual, state.local
    least = max((1.0 - CHANGED) * usual, (1.0 - CLEARLY) * local)
    slow = sum(each.waits and each.rate < least for each in state.recent)
    fast = sum(each.rate > (1.0 + CHANGED) * usual for each in state.recent)
    most_idle = IDLER + (1.0 if state.idle is None else state.idle)
    idle = sum(each.waits and each.idle > most_idle for each in state.recent)
    return max(slow, fast, idle) >= DOUBTS


def questioned(state: Refinement, rates: tuple[float, ...]) -> Refinement:
    """Compare with local workers alone again, and search anew."""
    alone = state.held._replace(share=0.0)
    state = replace(state, rival=alone, of_held=rates, of_rival=(), recent=(), tries=0)
    return switched(state, alone)


def searched_again(state: Refinement, rates: tuple[float, ...]) -> Refinement:
    """Search anew, without asking again whether local workers alone are faster."""
    seen = (SharePoint(0.0, state.local), SharePoint(state.held.share, median(rates)))
    return searched(replace(state, seen=seen, of_held=rates, odds=GENTLE))


def retried(state: Refinement) -> Refinement:
    """Compare local workers alone with the hoped-for setting."""
    hope, local = state.hope or state.held, tuple(each.rate for each in state.recent[-TURN:])
    return switched(replace(state, held=hope, rival=state.held, of_held=(), of_rival=local, recent=()), hope)
