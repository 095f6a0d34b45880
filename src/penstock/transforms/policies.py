"""Augmentation policies: they draw ops and magnitudes; `augment` turns them into steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError
from penstock.transforms.augment import Space, spaces, steps_of
from penstock.transforms.base import RandomOp
from penstock.transforms.draws import Draws
from penstock.transforms.ops import BILINEAR, NEAREST, ColorJitter
from penstock.transforms.published import AUTOAUGMENT
from penstock.transforms.steps import Code, Program, Size, Step

AUTOAUGMENT_SPACE = spaces(
    shear=0.3,
    rotate=30.0,
    factor=0.9,
    across=lambda size: 150.0 / 331.0 * size[1],
    down=lambda size: 150.0 / 331.0 * size[0],
    bits=(8, 4),
)
RANDAUGMENT = {"Identity": None, **AUTOAUGMENT_SPACE}
WIDE = {
    "Identity": None,
    **spaces(shear=0.99, rotate=135.0, factor=0.99, across=32.0, down=32.0, bits=(8, 2)),
}
AUGMIX = spaces(
    shear=0.3,
    rotate=30.0,
    factor=0.9,
    across=lambda size: size[1] / 3.0,
    down=lambda size: size[0] / 3.0,
    bits=(4, 0),
)
WITHOUT_COLOURS = {
    name: space
    for name, space in AUGMIX.items()
    if name not in ("Brightness", "Color", "Contrast", "Sharpness")
}


def drawn_steps(
    op: Any, name: str, space: Space | None, draws: Draws, at: int, bins: int, size: Size
) -> Program:
    """Return the steps of one op at a magnitude level, with a random sign if signed."""
    magnitude = 0.0 if space is None else space.magnitude(at, bins, size)
    if space is not None and space.signed:
        magnitude *= draws.sign()
    return steps_of(name, magnitude, size, op.interpolation, op.fill)


@dataclass(frozen=True)
class RandAugment(RandomOp):
    """RandAugment: apply `num_ops` random ops, all at strength `magnitude` of `num_magnitude_bins`. `fill`: the colour outside the image."""

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: int = NEAREST
    fill: Any = None

    def __post_init__(self) -> None:
        if not 0 <= self.magnitude < self.num_magnitude_bins:
            raise ConfigError(
                f"magnitude must be below num_magnitude_bins ({self.num_magnitude_bins}), got {self.magnitude}"
            )

    def draw(self, draws: Draws, size: Size) -> Program:
        program: Program = []
        for _ in range(self.num_ops):
            op = any_of(RANDAUGMENT, draws)
            program += drawn_steps(self, *op, draws, self.magnitude, self.num_magnitude_bins, size)
        return program


@dataclass(frozen=True)
class TrivialAugmentWide(RandomOp):
    """TrivialAugment (wide): apply one random op at a random one of `num_magnitude_bins` strengths."""

    num_magnitude_bins: int = 31
    interpolation: int = NEAREST
    fill: Any = None

    def draw(self, draws: Draws, size: Size) -> Program:
        op, at = any_of(WIDE, draws), draws.below(self.num_magnitude_bins)
        return drawn_steps(self, *op, draws, at, self.num_magnitude_bins, size)


@dataclass(frozen=True)
class AutoAugment(RandomOp):
    """AutoAugment: apply a random pair of ops from a published policy."""

    policy: str = "imagenet"
    """`imagenet`, `cifar10` or `svhn`."""
    interpolation: int = NEAREST
    fill: Any = None

    def __post_init__(self) -> None:
        if self.policy not in AUTOAUGMENT:
            raise ConfigError(f"policy must be one of {sorted(AUTOAUGMENT)}, got {self.policy!r}")

    def draw(self, draws: Draws, size: Size) -> Program:
        pairs = AUTOAUGMENT[self.policy]
        program: Program = []
        for name, p, at in pairs[draws.below(len(pairs))]:
            if draws.chance(p):
                program += drawn_steps(self, name, AUTOAUGMENT_SPACE.get(name), draws, at or 0, 10, size)
        return program


@dataclass(frozen=True)
class AugMix(RandomOp):
    """AugMix: mix several random chains of ops with each other and with the original image."""

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: int = BILINEAR
    fill: Any = None

    def __post_init__(self) -> None:
        if not 1 <= self.severity <= 10:
            raise ConfigError(f"severity must be between 1 and 10, got {self.severity}")

    def draw(self, draws: Draws, size: Size) -> Program:
        space = AUGMIX if self.all_ops else WITHOUT_COLOURS
        kept = draws.beta(self.alpha, self.alpha)
        parts = [draws.gamma(self.alpha) for _ in range(self.mixture_width)]
        chains = []
        for part in parts:
            program: Program = []
            for _ in range(self.chain_depth if self.chain_depth > 0 else 1 + draws.below(3)):
                op = any_of(space, draws)
                program += drawn_steps(self, *op, draws, draws.below(self.severity), 10, size)
            chains.append(((1.0 - kept) * part / (sum(parts) or 1.0), tuple(program)))
        return [Step(Code.MIX, (kept, tuple(chains)))]


@dataclass(frozen=True)
class ThreeAugment(RandomOp):
    """DeiT III's 3-Augment: grayscale, solarize or blur, each equally likely, then a slight colour jitter."""

    color_jitter: float = 0.3
    sigma: tuple[float, float] = (0.1, 2.0)

    def draw(self, draws: Draws, size: Size) -> Program:
        choices: list[Program] = [
            [Step(Code.GRAY, (3,))],
            [Step(Code.SOLARIZE, (128.0,))],
            [Step(Code.BLUR, (5, 5, *((draws.uniform(*self.sigma),) * 2)))],
        ]
        program = choices[draws.below(3)]
        jitter = self.color_jitter
        return program + ColorJitter(jitter, jitter, jitter).draw(draws, size)


def any_of(space: Mapping[str, Space | None], draws: Draws) -> tuple[str, Space | None]:
    """Draw one op, each equally likely."""
    names = list(space)
    name = names[draws.below(len(names))]
    return name, space[name]
