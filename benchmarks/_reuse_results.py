"""What `scripts/bench reuse_accuracy` found: a table of losses against standard augmentation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _harness import columns
from _lines import read_lines
from _paired import lower_bound, upper_bound

Row = dict[str, Any]
Key = tuple[str, str, int]
"""Network, variant, seed."""
STANDARD, ECHO, REUSED = "standard", "echo3", "r3"
GOAL_POINTS = 0.4
"""The accuracy, in points of 100, that 3 uses may cost at most, with 95 % confidence; echoing must cost more."""


def key_of(row: Mapping[str, Any]) -> Key:
    return row["network"], row["variant"], row["seed"]


def read_rows(path: Path, settings: Mapping[str, Any]) -> list[Row]:
    """Finished trainings with these settings."""
    rows = [row for row in read_lines(path) if row.get("settings") == dict(settings)]
    return list({key_of(row): row for row in rows}.values())


def losses_of(rows: Sequence[Row], network: str, variant: str) -> list[float]:
    """Points that a variant loses against standard augmentation, for each seed that has both."""
    found = {key_of(row): row["accuracy"] for row in rows}
    seeds = sorted(
        seed
        for kind, name, seed in found
        if kind == network and name == variant and (network, STANDARD, seed) in found
    )
    return [found[network, STANDARD, seed] - found[network, variant, seed] for seed in seeds]


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One line for each network and variant, in the order of their first rows."""
    lines = []
    for network, variant in dict.fromkeys(key_of(row)[:2] for row in rows):
        accuracies = [row["accuracy"] for row in rows if key_of(row)[:2] == (network, variant)]
        losses = losses_of(rows, network, variant)
        lines.append(
            {
                "network": network,
                "variant": variant,
                "trainings": len(accuracies),
                "accuracy": statistics.fmean(accuracies),
                "losses": losses,
                "loss": statistics.fmean(losses) if losses else None,
                "at_least": lower_bound(losses),
                "at_most": upper_bound(losses),
            }
        )
    return lines


def verdict(lines: Sequence[Mapping[str, Any]], network: str) -> str:
    """Whether 3 uses keep what they must, and whether the experiment could have told otherwise."""
    found = {line["variant"]: line for line in lines if line["network"] == network}
    reused, echoed = found.get(REUSED), found.get(ECHO)
    if reused is None or reused["at_most"] is None:
        return f"{network}: too few trainings to say anything"
    met = "met" if reused["at_most"] <= GOAL_POINTS else "missed"
    said = f"{network}: 3 uses lose at most {reused['at_most']:.2f} points ({met}: {GOAL_POINTS})"
    if echoed is None or echoed["at_most"] is None:
        return said
    # Seeds are the same: what echoing loses beyond reuse, pair by pair.
    beyond = lower_bound(
        [echo - kept for echo, kept in zip(echoed["losses"], reused["losses"], strict=False)]
    )
    outside = echoed["at_most"] > GOAL_POINTS and echoed["at_least"] > 0 and (beyond or 0) > 0
    power = "a loss that shows" if outside else "which does not show: the experiment lacks power"
    return f"{said}; echoing between {echoed['at_least']:.2f} and {echoed['at_most']:.2f}, {power}"


def table(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    lines = summary(rows)
    header = ["network", "variant", "trainings", "accuracy %", "loss, points", "at least", "at most (95 %)"]
    body = [
        [
            line["network"],
            titles.get(line["variant"], line["variant"]),
            str(line["trainings"]),
            f"{line['accuracy']:.2f}",
            *(
                "" if line[name] is None or line["variant"] == STANDARD else f"{line[name]:+.2f}"
                for name in ("loss", "at_least", "at_most")
            ),
        ]
        for line in lines
    ]
    said = [verdict(lines, network) for network in dict.fromkeys(line["network"] for line in lines)]
    return "\n".join([columns([header, *body]), "", *said]) if body else "nothing was trained"
