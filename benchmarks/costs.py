"""How well the cost model knows what a photo will cost, step by step: scripts/bench costs [--data DIR|tar] [--photos N]

Every other photo is prepared piece by piece and learned from, the others are predicted. What those take is the median of a few
preparations, in as many rounds over all photos. Errors are |predicted - taken| / taken, over the second half of the photos.

Machines become faster and slower by the second, with what others do on them: so beside each photo a fixed piece of work is done, and
times are divided by what that took. "As it came" is the error without that: what a loader sees. Without --data, photos are generated.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _machine
import _prepare_data
import numpy as np
import torch
from _harness import progress

from penstock import ImageFolder
from penstock import transforms as T  # noqa: N812
from penstock.pipeline.chain import Chain
from penstock.pipeline.pieces import Piece, observe, pieces_of
from penstock.policy.costs import CostModel

GENERATED = 600
GOAL = 0.15
TOGETHER = "together"
ROUNDS = 5
AROUND = 5
"""Photos on either side whose fixed work says how fast the machine is."""
TAIL = [
    T.ToImage(),
    T.ToDtype(torch.float32, scale=True),
    T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
]
CROP = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
CHAINS: Mapping[str, list[Any]] = {
    "cropped first": [*CROP, T.RandAugment(), *TAIL],
    "whole images": [T.TrivialAugmentWide(), *CROP, *TAIL],
    "mixed": [T.RandomResizedCrop(224), T.AugMix(), *TAIL],
    "colours and patches": [
        T.Resize(256),
        T.ColorJitter(0.4, 0.4, 0.4, 0.1),
        T.RandomChoice([T.Pad(20), T.GaussianBlur(9), T.RandomGrayscale(1.0)]),
        T.CenterCrop(224),
        T.RandomChoice(
            [T.RandomErasing(1.0), T.RandomErasing(1.0, value="random"), T.RandomVerticalFlip(1.0)]
        ),
        *TAIL,
    ],
}
"""What a step costs is learned for each chain by itself, as a loader does it."""


@dataclass(slots=True)
class Found:
    """What was found of one kind of piece."""

    seconds: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)

    def row(self) -> list[str]:
        middle, high = statistics.median(self.errors), sorted(self.errors)[len(self.errors) * 9 // 10]
        return [
            f"{len(self.errors) // ROUNDS}",
            f"{statistics.median(self.seconds) * 1e6:,.0f} µs",
            f"{middle:.0%}{' (!)' if middle > GOAL else ''}",
            f"{high:.0%}",
            f"{statistics.median(self.raw):.0%}",
        ]


Rounds = list[list[list[Piece]]]
"""Pieces of each photo in each round."""


def prepared(root: Path, chain: list[Any]) -> tuple[Rounds, Rounds]:
    """All photos as they came, and with the speed of the machine taken out."""
    dataset, fixed = ImageFolder(root, chain), FixedWork()
    rounds: Rounds = []
    speeds: list[list[float]] = []
    for _ in range(ROUNDS):
        rounds.append([])
        speeds.append([])
        for index in range(len(dataset)):
            speeds[-1].append(fixed.seconds())
            rounds[-1].append([piece for piece in pieces_of(dataset, index) if piece.kind])
    usual = statistics.median(chain_of(speeds))
    return rounds, [
        [
            [piece._replace(seconds=piece.seconds * usual / around(took, index)) for piece in pieces]
            for index, pieces in enumerate(photos)
        ]
        for took, photos in zip(speeds, rounds, strict=True)
    ]


class FixedWork:
    """The same each time: resampling, a table, floats, on one image."""

    def __init__(self) -> None:
        self.chain = Chain.of([T.Resize((200, 200)), T.ColorJitter(brightness=(1.5, 1.5)), *TAIL])
        self.image = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)

    def seconds(self) -> float:
        before = time.thread_time()
        self.chain.run(self.image, 0)
        return time.thread_time() - before


def around(took: list[float], at: int) -> float:
    return statistics.median(took[max(0, at - AROUND) : at + AROUND + 1])


def chain_of(lists: list[list[float]]) -> list[float]:
    return [value for values in lists for value in values]


def errors(rounds: Rounds) -> Iterator[tuple[str, float, float]]:
    """Kind, seconds and error of every prediction; a model learns from one round."""
    for photos in rounds:
        model = CostModel()
        for index, pieces in enumerate(photos):
            if index % 2:
                observe(model, pieces)
            elif index >= len(photos) // 2:
                yield from predicted(model, [others[index] for others in rounds])


def predicted(model: CostModel, runs: list[list[Piece]]) -> Iterator[tuple[str, float, float]]:
    guesses = [model.predict(piece.kind, piece.features) for piece in runs[0]]
    for guess, same in zip(guesses, zip(*runs, strict=True), strict=True):
        if guess is not None:
            taken = statistics.median(piece.seconds for piece in same)
            yield same[0].kind, taken, abs(guess - taken) / taken
    if None not in guesses:
        taken = statistics.median(sum(piece.seconds for piece in run) for run in runs)
        yield TOGETHER, taken, abs(sum(guess or 0.0 for guess in guesses) - taken) / taken


def measured(root: Path, chain: list[Any]) -> dict[str, Found]:
    """Errors by kind of piece, and of samples as a whole."""
    found: dict[str, Found] = defaultdict(Found)
    raw, steady = prepared(root, chain)
    for kind, _, error in errors(raw):
        found[kind].raw.append(error)
    for kind, seconds, error in errors(steady):
        found[kind].seconds.append(seconds)
        found[kind].errors.append(error)
    return dict(
        sorted(found.items(), key=lambda entry: (entry[0] == TOGETHER, entry[0][0].isupper(), entry[0]))
    )


def table(chains: Mapping[str, dict[str, Found]]) -> str:
    lines = [
        "| chain | piece | photos | takes | median error | 90 % below | as it came |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, kinds in chains.items():
        lines += [f"| {' | '.join([name, kind, *found.row()])} |" for kind, found in kinds.items()]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", metavar="DIR|TAR", help="photos; without it, generated ones")
    parser.add_argument("--photos", type=int, help="how many of them; all, or 600 generated")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    count = options.photos or (None if options.data else GENERATED)
    root = _prepare_data.photos(options.data, count, progress)
    print(
        ", ".join(f"{name} {value}" for name, value in _machine.describe(Path(__file__).parents[1]).items()),
        end="\n\n",
    )
    print(table({name: measured(root, chain) for name, chain in CHAINS.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
