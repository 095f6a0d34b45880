"""Compare loaders: when a ratio may be shown, and the bars.

Rule 1: no ratio if the rounds straddle 1: a ratio above 1 in some rounds and below in others shows no difference.
Rule 2: no ratio from fewer than five rounds (five agree by chance in one case of sixteen), and none without its spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import median

from penstock.report.svg import number, thousands

ROUNDS = 5
"""Least number of rounds for a ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Loaders measured in the same run."""

    title: str
    rounds: Mapping[str, Sequence[float]]
    """Samples/s of each round of each loader, ours last."""
    about: str = ""
    """What was measured."""
    limit: float | None = None
    """The machine's best possible rate, in samples/s."""
    limit_name: str = ""
    """What that limit is."""
    says: str = ""
    """The result in one sentence."""
    unit: str = field(default="samples/s")


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio of each round, whose loaders ran next to each other in time."""
    return [our / their for our, their in zip(ours, theirs, strict=True)]


def may_tell(found: Sequence[float]) -> bool:
    """Return whether the rounds agree on the faster loader, in the digits shown."""
    return len(found) >= ROUNDS and (round(min(found), 2) > 1 or round(max(found), 2) < 1)


def verdict(ours: Sequence[float], theirs: Sequence[float], *, rival: str = "torch") -> str:
    """Return the ratio with its spread, or why there is none."""
    found = ratios(ours, theirs)
    if len(found) < ROUNDS:
        rounds = "1 round is" if len(found) == 1 else f"{len(found)} rounds are"
        return f"No ratio: {rounds} too few, {ROUNDS} are needed."
    spread = f"{len(found)} rounds: {min(found):.2f} to {max(found):.2f}"
    if not may_tell(found):
        return f"No difference to {rival} that these rounds can tell ({spread})."
    slower = "" if min(found) > 1 else ", slower"
    return f"{median(found):.2f} times {rival}{slower} ({spread})."


def bars(race: Race) -> str:
    """Draw a bar for each loader's median, with the spread of its rounds; the axis starts at 0."""
    most = max((rate for rounds in race.rounds.values() for rate in rounds), default=1.0)
    most = max(most, race.limit or 0.0, 1e-9)
    lanes = []
    for at, (name, rounds) in enumerate(race.rounds.items()):
        look = "ours" if at == len(race.rounds) - 1 else "theirs"
        lanes.append(lane(name, rounds, most, race.unit, look))
    if race.limit is not None:
        lanes.append(lane("limit", [race.limit], most, race.unit, "limit"))
    return f'<div class="race">{"".join(lanes)}</div>'


def lane(name: str, rounds: Sequence[float], most: float, unit: str, look: str) -> str:
    middle = median(rounds) if rounds else 0.0
    spread = ""
    whisker = ""
    if len(rounds) > 1:
        low, high = min(rounds), max(rounds)
        spread = f" <small>{thousands(low)} to {thousands(high)}</small>"
        place = f"left:{percent(low / most)};width:{percent((high - low) / most)}"
        whisker = f'<i class="spread" style="{place}"></i>'
    return (
        f'<div class="lane"><span class="who">{escape(name)}</span>'
        f'<span class="track"><b class="{look}" style="width:{percent(middle / most)}"></b>{whisker}</span>'
        f'<span class="rate"><b>{thousands(middle)}</b> {escape(unit)}{spread}</span></div>'
    )


def percent(share: float) -> str:
    return f"{number(100 * share)}%"
