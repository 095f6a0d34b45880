"""Ops on waveforms: float32 arrays, channels x samples, full scale being 1. Those that make spectra are in `spectra`.

Rule 1: `draw` is a pure function of its random numbers and the shape of what comes; it gives plain numbers and touches no sample.
Rule 2: `apply` draws nothing: the same numbers give the same result wherever it runs. It changes no array that it is given.
Rule 3: nothing here uses threads or a BLAS: the cores are the workers', and a BLAS in a forked worker may hang.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.random
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.transforms.base import Named
from penstock.transforms.draws import Draws
from penstock.transforms.libs import soxr

Wave = NDArray[np.float32]
Shape = tuple[int, ...]
Drawn = tuple[float, ...]
"""What an op has drawn for one sample: plain numbers."""
Range = float | Sequence[float]

QUALITIES = ("QQ", "LQ", "MQ", "HQ", "VHQ")


@dataclass(frozen=True)
class AudioOp(Named):
    """One op. Its fields are its parameters, and with its name its identity."""

    def draw(self, draws: Draws, shape: Shape) -> Drawn:  # noqa: ARG002
        """What is random about a sample of this shape; nothing, unless an op says otherwise."""
        return ()

    def apply(self, x: Any, drawn: Drawn) -> Any:
        """The sample, treated by what was drawn for it."""
        raise NotImplementedError


# ---- parameters


def check_count(name: str, value: object, *, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")


def limits(name: str, value: Range) -> tuple[float, float]:
    """Low and high from one number or two."""
    try:
        low, high = (value, value) if isinstance(value, (int, float)) else map(float, value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be a number or (low, high), got {value!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ConfigError(f"{name} must be finite, the lower limit first, got {value!r}")
    return low, high


# ---- ops


@dataclass(frozen=True)
class Resample(AudioOp):
    """From one sampling rate to another, band-limited, by soxr."""

    orig_freq: int
    new_freq: int
    quality: str = "HQ"
    """One of soxr's: QQ, LQ, MQ, HQ, VHQ."""

    def __post_init__(self) -> None:
        check_count("orig_freq", self.orig_freq)
        check_count("new_freq", self.new_freq)
        if self.quality not in QUALITIES:
            raise ConfigError(f"quality must be one of {', '.join(QUALITIES)}, got {self.quality!r}")

    def apply(self, x: Wave, drawn: Drawn) -> Wave:  # noqa: ARG002
        if self.orig_freq == self.new_freq:
            return x
        columns = np.ascontiguousarray(x.T)
        found: Wave = soxr().resample(columns, self.orig_freq, self.new_freq, quality=self.quality)
        return np.ascontiguousarray(found.T)


@dataclass(frozen=True)
class AddNoise(AudioOp):
    """White noise, so loud that the sample has exactly the drawn ratio of signal to noise; silence stays silence."""

    snr_db: Range
    """(low, high) of the ratio in decibels, or one number."""

    is_random = True

    def __post_init__(self) -> None:
        limits("snr_db", self.snr_db)

    def draw(self, draws: Draws, shape: Shape) -> Drawn:  # noqa: ARG002
        return draws.uniform(*limits("snr_db", self.snr_db)), draws.bits()

    def apply(self, x: Wave, drawn: Drawn) -> Wave:
        snr_db, seed = drawn
        noise = white_noise(int(seed), x.shape)
        loudness = power_of(noise)
        if loudness == 0:
            return x
        scale = math.sqrt(power_of(x) / loudness) * 10.0 ** (-snr_db / 20)
        noise *= np.float32(scale)
        noise += x
        return noise


def white_noise(seed: int, shape: Shape) -> Wave:
    """Standard normal numbers of a 64-bit seed."""
    return np.random.Generator(np.random.Philox(key=seed)).standard_normal(shape, dtype=np.float32)


def power_of(x: Wave) -> float:
    """The mean square."""
    return float(np.mean(np.square(x, dtype=np.float64))) if x.size else 0.0


@dataclass(frozen=True)
class Gain(AudioOp):
    """Louder or softer by a drawn number of decibels; nothing is clipped."""

    gain_db: Range
    """(low, high), or one number."""

    is_random = True

    def __post_init__(self) -> None:
        limits("gain_db", self.gain_db)

    def draw(self, draws: Draws, shape: Shape) -> Drawn:  # noqa: ARG002
        return (draws.uniform(*limits("gain_db", self.gain_db)),)

    def apply(self, x: Wave, drawn: Drawn) -> Wave:
        return x * np.float32(10.0 ** (drawn[0] / 20))


@dataclass(frozen=True)
class PadOrCut(AudioOp):
    """Samples of one length: a random part of longer ones, zeros behind shorter ones."""

    samples: int

    is_random = True

    def __post_init__(self) -> None:
        check_count("samples", self.samples)

    def draw(self, draws: Draws, shape: Shape) -> Drawn:
        return (draws.below(max(0, shape[-1] - self.samples) + 1),)

    def apply(self, x: Wave, drawn: Drawn) -> Wave:
        start = int(drawn[0])
        if x.shape[-1] >= self.samples:
            return x[..., start : start + self.samples]
        found = np.zeros((*x.shape[:-1], self.samples), dtype=x.dtype)
        found[..., : x.shape[-1]] = x
        return found


@dataclass(frozen=True)
class Function(AudioOp):
    """A function of the user's, array in, array out: what `Lambda` becomes in a chain for audio."""

    lambd: Callable[[Any], Any]

    is_random = True  # it may draw from the global generators, which are seeded for each sample

    def apply(self, x: Any, drawn: Drawn) -> Any:  # noqa: ARG002
        return self.lambd(x)
