"""What `scripts/bench reuse_accuracy` found: its file, a table of losses against standard augmentation, and a picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _paired import lower_bound, upper_bound
from _prepare_report import columns

from penstock.report import svg

Row = dict[str, Any]
Key = tuple[str, str, int]
"""Network, variant, seed."""
STANDARD, ECHO, PLAIN, REUSED = "standard", "echo3", "plain3", "r3"
GOAL_POINTS = 0.4
"""The accuracy, in points of 100, that 3 uses may cost at most, with 95 % confidence; echoing must cost more."""
STYLE = """<style>
svg { background: #fff; } text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #1d1f22; }
text.small { font-size: 11px; fill: #62676f; } text.title { font-weight: 600; } .grid { stroke: #e2e3e5; } .goal { stroke: #c3362b; stroke-dasharray: 4 3; }
.seed { fill: #2a78d6; fill-opacity: .45; } .bound { stroke: #1d1f22; stroke-width: 1.6; } .mean { fill: #1d1f22; }
.series-0, .series-1, .series-2 { fill: none; stroke-width: 1.8; } .series-0 { stroke: #62676f; } .series-1 { stroke: #2a78d6; } .series-2 { stroke: #df7224; }
</style>"""


def key_of(row: Mapping[str, Any]) -> Key:
    return row["network"], row["variant"], row["seed"]


def read_rows(path: Path, settings: Mapping[str, Any]) -> list[Row]:
    """Finished trainings with these settings. A line that was cut off by a sudden end is none."""
    rows: dict[Key, Row] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("settings") == dict(settings):
            rows[key_of(row)] = row
    return list(rows.values())


def append_row(path: Path, row: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if torn else "") + json.dumps(row) + "\n")


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


# ---- picture


def drawn(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """Losses of each network under each other, and accuracy over the epochs."""
    parts, y = [STYLE], 10.0
    for network in dict.fromkeys(row["network"] for row in rows):
        lines = [line for line in summary(rows) if line["network"] == network and line["losses"]]
        shown = [line for line in lines if line["variant"] != STANDARD]
        y = losses_drawn(parts, y, network, shown, titles)
        y = curves_drawn(parts, y, [row for row in rows if row["network"] == network], titles)
    return svg.picture(860, y, parts, says="Accuracy lost by reuse, and accuracy over the epochs")


def losses_drawn(
    parts: list[str], y: float, network: str, lines: Sequence[Mapping[str, Any]], titles: Mapping[str, str]
) -> float:
    """A point for each seed, the mean, and the line between the two bounds."""
    values = [
        value
        for line in lines
        for value in [*line["losses"], line["at_least"], line["at_most"]]
        if value is not None
    ]
    low, high = min([0.0, *values]) - 0.1, max([GOAL_POINTS, *values]) + 0.1

    def x(value: float) -> float:
        return 260 + 560 * (value - low) / (high - low)

    parts.append(
        svg.text(
            12,
            y + 14,
            f"{network}: points lost against standard, each seed; mean and one-sided bounds of 95 %",
            "title",
        )
    )
    top, bottom = y + 26, y + 26 + 24 * len(lines)
    for tick in svg.ticks(low, high, 8):
        parts.append(svg.line(x(tick), top, x(tick), bottom, "grid"))
        parts.append(svg.text(x(tick), bottom + 14, f"{tick:g}", "small", anchor="middle"))
    parts.append(svg.line(x(GOAL_POINTS), top, x(GOAL_POINTS), bottom, "goal"))
    for at, line in enumerate(lines):
        middle = top + 24 * at + 12
        parts.append(svg.text(250, middle + 4, titles.get(line["variant"], line["variant"]), anchor="end"))
        parts += [svg.circle(x(loss), middle, 4, "seed") for loss in line["losses"]]
        if line["at_least"] is not None:
            parts.append(svg.line(x(line["at_least"]), middle, x(line["at_most"]), middle, "bound"))
        parts.append(svg.circle(x(line["loss"]), middle, 3, "mean"))
    return bottom + 40


def curves_drawn(parts: list[str], y: float, rows: Sequence[Row], titles: Mapping[str, str]) -> float:
    """Accuracy when it was looked at, mean of all seeds: standard, reused, and reused in a plain shuffle (Revamper's figure 14)."""
    curves = {
        name: mean_curve([row for row in rows if row["variant"] == name])
        for name in (STANDARD, REUSED, PLAIN)
    }
    points = [point for curve in curves.values() for point in curve]
    if len({epoch for epoch, _ in points}) < 2:
        return y
    last, low, high = max(p[0] for p in points), min(p[1] for p in points), max(p[1] for p in points)

    def place(epoch: float, accuracy: float) -> tuple[float, float]:
        return 60 + 760 * epoch / last, y + 190 - 160 * (accuracy - low) / max(1e-9, high - low)

    parts.append(
        svg.text(
            12, y + 14, f"{rows[0]['network']}: accuracy (%) over the epochs, mean of the seeds", "title"
        )
    )
    for tick in svg.ticks(low, high, 5):
        parts.append(svg.line(60, place(0, tick)[1], 820, place(0, tick)[1], "grid"))
        parts.append(svg.text(54, place(0, tick)[1] + 4, f"{tick:g}", "small", anchor="end"))
    parts += [
        svg.text(place(tick, low)[0], y + 206, f"{tick:g}", "small", anchor="middle")
        for tick in svg.ticks(0, last, 8)
    ]
    for at, (name, curve) in enumerate(curves.items()):
        if curve:
            parts.append(svg.path([place(*point) for point in curve], f"series-{at}"))
        parts.append(svg.line(60 + 240 * at, y + 226, 84 + 240 * at, y + 226, f"series-{at}"))
        parts.append(svg.text(90 + 240 * at, y + 230, titles.get(name, name)))
    return y + 250


def mean_curve(rows: Sequence[Row]) -> list[tuple[float, float]]:
    found: dict[int, list[float]] = {}
    for row in rows:
        for epoch, accuracy in row["looks"]:
            found.setdefault(epoch, []).append(accuracy)
    return [(epoch, statistics.fmean(found[epoch])) for epoch in sorted(found)]
