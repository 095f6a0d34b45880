"""Ops on waveforms: float32 arrays, channels x samples, full scale 1. Ops on spectra are in `spectra`.

Rule 1: `draw` is a pure function of its random numbers and the input's shape. It returns plain numbers and touches no sample.
Rule 2: `apply` draws nothing: the same numbers give the same result anywhere. It does not modify its input.
Rule 3: no threads and no BLAS: the cores belong to the workers, and a BLAS may hang in a forked worker.
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
"""An op's draw for one sample: plain numbers."""
Range = float | Sequence[float]

QUALITIES = ("QQ", "LQ", "MQ", "HQ", "VHQ")


@dataclass(frozen=True)
class AudioOp(Named):
    """One audio op. Its name and its fields, the parameters, are its identity."""

    def draw(self, draws: Draws, shape: Shape) -> Drawn:  # noqa: ARG002
        """Draw the random parameters for a sample of this shape; none by default."""
        return ()

    def apply(self, x: Any, drawn: Drawn) -> Any:
        """Apply the op to a sample, with the parameters drawn for it."""
        raise NotImplementedError


# ---- parameters


def check_count(name: str, value: object, *, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")


def limits(name: str, value: Range) -> tuple[float, float]:
    """Return (low, high) from one number or two."""
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
    """Resample from `orig_freq` to `new_freq` (Hz), band-limited, with soxr."""

    orig_freq: int
    new_freq: int
    quality: str = "HQ"
    """soxr's quality: QQ, LQ, MQ, HQ or VHQ."""

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
    """Add white noise, scaled so that the sample has exactly the drawn signal-to-noise ratio. Silence stays silent."""

    snr_db: Range
    """Range (low, high) of the ratio in decibels, or one number."""

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
    """Return standard normal numbers for a 64-bit seed."""
    return np.random.Generator(np.random.Philox(key=seed)).standard_normal(shape, dtype=np.float32)


def power_of(x: Wave) -> float:
    return float(np.mean(np.square(x, dtype=np.float64))) if x.size else 0.0


@dataclass(frozen=True)
class Gain(AudioOp):
    """Change the volume by a drawn number of decibels, without clipping."""

    gain_db: Range
    """Range (low, high) in decibels, or one number."""

    is_random = True

    def __post_init__(self) -> None:
        limits("gain_db", self.gain_db)

    def draw(self, draws: Draws, shape: Shape) -> Drawn:  # noqa: ARG002
        return (draws.uniform(*limits("gain_db", self.gain_db)),)

    def apply(self, x: Wave, drawn: Drawn) -> Wave:
        return x * np.float32(10.0 ** (drawn[0] / 20))


@dataclass(frozen=True)
class PadOrCut(AudioOp):
    """Crop a sample to `samples` at a random position, or pad it with zeros at the end."""

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
    """Call a user function, array in, array out: `Lambda` in an audio chain."""

    lambd: Callable[[Any], Any]

    is_random = True  # it may draw from the global generators, seeded per sample

    def apply(self, x: Any, drawn: Drawn) -> Any:  # noqa: ARG002
        return self.lambd(x)
