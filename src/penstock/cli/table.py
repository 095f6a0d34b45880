"""Text tables, and the comparison of two measured runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from penstock.cli.display import memory
from penstock.cli.watched import Result

STEPS = 20
"""Fewer steps give no ratio."""
START = 0.2
"""Most of a run that may pass before its first batch: with more, a ratio would compare worker starts."""


def aligned(rows: Sequence[Sequence[str]], ways: str) -> list[str]:
    """Align columns left or right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pads: dict[str, Callable[[str, int], str]] = {"<": str.ljust, ">": str.rjust}
    return [
        "  ".join(pads[way](word, width) for word, width, way in zip(row, widths, ways, strict=True)).rstrip()
        for row in rows
    ]


def table(torchs: Result, ours: Result) -> str:
    """Return the comparison and our bottleneck."""
    theirs, mine = torchs.facts, ours.facts
    few = too_few_steps(theirs, mine)
    rows = [
        ("", "torch", "penstock", ""),
        (
            "samples/s",
            f"{theirs['samples_per_s']:,.0f}",
            f"{mine['samples_per_s']:,.0f}",
            "" if few else ratio(mine["samples_per_s"], theirs["samples_per_s"]),
        ),
        ("waiting share", f"{theirs['wait_share']:.0%}", f"{mine['wait_share']:.0%}", ""),
        (
            "peak memory (PSS)",
            memory(torchs.peak_bytes),
            memory(ours.peak_bytes),
            ratio(ours.peak_bytes, torchs.peak_bytes),
        ),
        ("first batch after", f"{theirs['first_batch_s']:.2f} s", f"{mine['first_batch_s']:.2f} s", ""),
        ("batches", f"{theirs['batches']:.0f}", f"{mine['batches']:.0f}", ""),
    ]
    limits = f"\nwith penstock: {ours.diagnosis}" if ours.diagnosis else ""
    return "\n".join([*aligned(rows, "<>>>"), *filter(None, (few and f"\n{few}", limits))])


def too_few_steps(theirs: Mapping[str, float], mine: Mapping[str, float]) -> str:
    """Say why the runs are too short for a ratio of samples/s, and how many steps suffice; "" if they are not."""
    enough = max(map(steps_needed, (theirs, mine)))
    steps = min(facts["batches"] / facts.get("ranks", 1) for facts in (theirs, mine))
    share, slower = max((start_share(theirs), "torch"), (start_share(mine), "penstock"))
    if steps < STEPS:
        return f"Too few steps for a ratio: {steps:.0f}, where {enough:,} would do (--steps {enough})."
    if share > START:
        return (
            f"Too few steps for a ratio: {share:.0%} of {slower}'s run passed before its first batch; "
            f"{enough:,} steps would do (--steps {enough})."
        )
    return ""


def start_share(facts: Mapping[str, float]) -> float:
    return min(1.0, facts["first_batch_s"] / facts["elapsed_s"]) if facts["elapsed_s"] else 1.0


def steps_needed(facts: Mapping[str, float]) -> int:
    """Return the steps after which the start is a small enough share, rounded."""
    steps = facts["batches"] / facts.get("ranks", 1)
    per_step_s = max(1e-6, facts["elapsed_s"] - facts["first_batch_s"]) / max(1.0, steps - 1)
    wanted = max(float(STEPS), 1 + facts["first_batch_s"] * (1 - START) / START / per_step_s)
    scale = 10 ** max(0, math.floor(math.log10(wanted)) - 1)
    return int(math.ceil(1.25 * wanted / scale) * scale)


def ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}x" if other else ""
