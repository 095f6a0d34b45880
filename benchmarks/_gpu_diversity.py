"""How diverse augmentation is where several samples share a draw (FusionFlow, section 4.3 and figure 6), and where none do.

A formula for the spread of diversity, simulated trainings beside it, and the figure as an SVG picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penstock.report import svg

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Augmented:
    """FusionFlow's model: in each of `epochs`, each of `samples` gets one of `ops`, drawn evenly, once for every `shared` samples
    that chance puts together. Diversity is the number of different (sample, op) after all epochs."""

    ops: int
    epochs: int
    samples: int
    shared: int = 1

    def variance_of_one(self) -> float:
        """Of the number of different ops that one sample gets."""
        ops, q, r = self.ops, 1 - 1 / self.ops, 1 - 2 / self.ops
        return ops * q**self.epochs + ops * (ops - 1) * r**self.epochs - (ops * q**self.epochs) ** 2

    def covariance(self) -> float:
        """Of the numbers of two samples, which are together in an epoch with chance p.

        Neither gets op t: q² where they are apart, q together; one does not get t and the other not s: q² and 1 - 2/ops. To the
        power of the epochs, less what independence would give, over all (t, s). The terms in p cancel, what is left has p²:
        hence log1p and expm1.
        """
        p, others = (self.shared - 1) / (self.samples - 1), self.ops - 1
        same = math.expm1(self.epochs * math.log1p(p / others))
        different = math.expm1(self.epochs * math.log1p(-p / others**2))
        return (1 - 1 / self.ops) ** (2 * self.epochs) * self.ops * (same + others * different)

    def ratio(self) -> float:
        """The standard deviation of diversity over that of draws for each sample."""
        return math.sqrt(max(0.0, 1 + (self.samples - 1) * self.covariance() / self.variance_of_one()))

    def simulated(self, runs: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """The diversity of so many trainings; `shared` divides `samples`."""
        seen = np.zeros((runs, self.samples), np.uint32)
        for _ in range(self.epochs):
            ops = rng.integers(0, self.ops, (runs, self.samples // self.shared), np.uint32)
            seen |= np.uint32(1) << rng.permuted(ops.repeat(self.shared, axis=1), axis=1)
        return np.asarray(np.unpackbits(seen.view(np.uint8), axis=1).sum(axis=1))


POLICIES = {"RandAugment": (16, (2, 10, 40, 140)), "AutoAugment": (25, (2, 10, 40, 200))}
"""Number of ops, and epochs that are shown, as in the paper."""
PAPERS_SAMPLES = 1_743_042
MOST_SHARED = 100
SMALL = 240
"""Samples of the simulation: few, so that sharing shows; what n divides."""


def distinct(ops: int, batch: int, shared: int) -> float:
    """Different ops that one batch is expected to have: what the ratio does not show."""
    return ops * (1 - (1 - 1 / ops) ** (batch // shared))


def found_of(runs: int, say: Say) -> dict[str, Any]:
    """The paper's curves by the formula, so many simulated trainings beside it, and what one batch has."""
    rng = np.random.default_rng(0)
    curves = [
        {"policy": name, "epochs": epochs, "ratios": curve(ops, epochs)}
        for name, (ops, several) in POLICIES.items()
        for epochs in several
    ]
    cases = [
        case
        for name, (ops, _) in POLICIES.items()
        for epochs in (2, 10, 40)
        for case in simulation(name, ops, epochs, runs, rng, say)
    ]
    batches = [
        {"policy": name, "shared": shared, "distinct_in_512": distinct(ops, 512, shared)}
        for name, (ops, _) in POLICIES.items()
        for shared in (1, 4, 16, 64)
    ]
    paper = {"samples": PAPERS_SAMPLES, "curves": curves, "per_sample": 1.0}
    return {"paper": paper, "simulated": {"runs": runs, "cases": cases}, "found": batches}


def curve(ops: int, epochs: int) -> list[float]:
    return [Augmented(ops, epochs, PAPERS_SAMPLES, n).ratio() for n in range(1, MOST_SHARED + 1)]


def simulation(
    name: str, ops: int, epochs: int, runs: int, rng: np.random.Generator, say: Say
) -> list[dict[str, Any]]:
    """The formula beside simulated trainings, for a few numbers of samples that share a draw."""
    alone, error = std_of(Augmented(ops, epochs, SMALL).simulated(runs, rng))
    found = []
    for shared in (1, 4, 16, 60, 120):
        case = Augmented(ops, epochs, SMALL, shared)
        std, another = std_of(case.simulated(runs, rng))
        ratio, doubt = std / alone, std / alone * math.hypot(error, another)
        say(
            f"{name}, {epochs} epochs, {shared} of {SMALL}: {case.ratio():.3f}, simulated {ratio:.3f} ± {doubt:.3f}"
        )
        found.append(
            {"policy": name, **asdict(case), "formula": case.ratio(), "ratio": ratio, "error": doubt}
        )
    return found


def std_of(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """A standard deviation, and its own relative standard error, which grows with how far outliers lie."""
    std = float(values.std())
    if not std:
        return std, 0.0
    kurtosis = float((((values - values.mean()) / std) ** 4).mean())
    return std, math.sqrt(max(0.0, kurtosis - 1) / (4 * len(values)))


STYLE = (
    "text{font:12px sans-serif;fill:#62676f}.grid{stroke:#d5d7da}.curve{fill:none;stroke:#1f6f8b;stroke-width:1.5}"
    ".ours{stroke:#df7224;stroke-width:2;stroke-dasharray:6 4}.ground{fill:#fff}"
)
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760.0, 320.0, 62.0, 40.0, 270.0
PANEL, GAP = 290.0, 80.0


def drawn(curves: Sequence[Mapping[str, Any]]) -> str:
    """The ratio over n, a panel for each policy and a line for each number of epochs; the dashed line is ours."""
    top = max(max(curve["ratios"]) for curve in curves)
    parts = [f"<style>{STYLE}</style>", svg.rect(0, 0, WIDTH, HEIGHT, "ground")]
    for at, policy in enumerate(POLICIES):
        shown = [curve for curve in curves if curve["policy"] == policy]
        parts += panel(policy, shown, LEFT + at * (PANEL + GAP), top)
    says = "Standard deviation of diversity with shared draws over that with draws for each sample"
    return svg.picture(WIDTH, HEIGHT, parts, says=says)


def panel(policy: str, curves: Sequence[Mapping[str, Any]], left: float, top: float) -> list[str]:
    def x(n: float) -> float:
        return left + PANEL * n / MOST_SHARED

    def y(ratio: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (ratio - 1) / max(1e-9, top - 1)

    parts = [svg.text(left, TOP - 16, f"{policy}: ratio of standard deviations")]
    for tick in svg.ticks(0, top - 1, 4):
        parts += [
            svg.line(left, y(1 + tick), left + PANEL, y(1 + tick), "grid"),
            svg.text(left - 6, y(1 + tick) + 4, f"{1 + tick:.4f}", anchor="end"),
        ]
    for curve in curves:
        points = [(x(n), y(ratio)) for n, ratio in enumerate(curve["ratios"], 1)]
        parts.append(svg.path(points, "curve"))
        if points[-1][1] < BOTTOM - 12:
            parts.append(
                svg.text(points[-1][0] - 6, points[-1][1] - 4, f"K = {curve['epochs']}", anchor="end")
            )
    parts += [svg.text(x(n), BOTTOM + 18, f"{n}", anchor="middle") for n in range(0, MOST_SHARED + 1, 25)]
    parts += [
        svg.line(left, y(1), left + PANEL, y(1), "ours"),
        svg.text(left, HEIGHT - 10, "samples that share a draw (dashed: ours, none do)"),
    ]
    return parts
