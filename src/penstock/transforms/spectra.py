"""Ops from waveforms to spectra, and on spectra: float32 arrays, channels x frequencies x frames.

Spectra equal torch.stft's with its defaults: periodic Hann window, frames centred on multiples of the hop, the signal mirrored at its ends.
Everything is float32 NumPy in one thread (see `audio` for the rules).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.transforms.audio import AudioOp, Drawn, Shape, Wave, check_count
from penstock.transforms.draws import Draws

Spectrum = NDArray[np.float32]


@dataclass(frozen=True)
class STFT(AudioOp):
    """Short-time Fourier transform: channels x (n_fft // 2 + 1) x (1 + samples // hop_length)."""

    n_fft: int
    hop_length: int
    win_length: int | None = None
    """Window length in samples, centred in n_fft; None: n_fft."""
    power: float | None = 2.0
    """Exponent of the magnitude: 1 for magnitude, 2 for power; None returns complex numbers."""

    def __post_init__(self) -> None:
        check_count("n_fft", self.n_fft, least=2)
        check_count("hop_length", self.hop_length)
        if self.win_length is not None:
            check_count("win_length", self.win_length)
            if self.win_length > self.n_fft:
                raise ConfigError(f"win_length must not be above n_fft={self.n_fft}, got {self.win_length}")
        if self.power is not None and not 0 < self.power < math.inf:
            raise ConfigError(f"power must be above 0, or None for complex numbers, got {self.power}")

    def apply(self, x: Wave, drawn: Drawn) -> NDArray[Any]:  # noqa: ARG002
        found: NDArray[Any] = spectra(x, self.n_fft, self.hop_length, self.win_length or self.n_fft)
        if self.power == 2.0:
            found = power_spectrum(found)
        elif self.power is not None:
            found = np.abs(found)
            if self.power != 1.0:
                found **= self.power
        return np.ascontiguousarray(found.swapaxes(-1, -2))


Spectrogram = STFT


@dataclass(frozen=True)
class LogMel(AudioOp):
    """Log power in bands of equal width on HTK's mel scale: channels x n_mels x frames."""

    sample_rate: int
    n_mels: int = 64
    n_fft: int = 400
    hop_length: int = 160
    f_min: float = 0.0
    f_max: float | None = None
    """Upper edge of the last band in Hz; None: half the sampling rate."""
    floor: float = 1e-10
    """Minimum power, since silence has no logarithm."""

    def __post_init__(self) -> None:
        check_count("sample_rate", self.sample_rate)
        check_count("n_mels", self.n_mels)
        check_count("n_fft", self.n_fft, least=2)
        check_count("hop_length", self.hop_length)
        if not 0 <= self.f_min < self.highest <= self.sample_rate / 2:
            raise ConfigError(
                f"f_min and f_max must be 0 <= f_min < f_max <= sample_rate / 2 = {self.sample_rate / 2:g}, "
                f"got {self.f_min:g} and {self.highest:g}"
            )
        if not 0 < self.floor < math.inf:
            raise ConfigError(f"floor must be above 0, got {self.floor}")

    @property
    def highest(self) -> float:
        return self.sample_rate / 2 if self.f_max is None else self.f_max

    def apply(self, x: Wave, drawn: Drawn) -> Spectrum:  # noqa: ARG002
        power = power_spectrum(spectra(x, self.n_fft, self.hop_length, self.n_fft))
        bands = mel_bands(self.sample_rate, self.n_mels, self.n_fft, self.f_min, self.highest)
        found = bands.sums(np.ascontiguousarray(power.swapaxes(-1, -2)))
        np.maximum(found, np.float32(self.floor), out=found)
        return np.log(found, out=found)


# ---- transforms


def spectra(x: Wave, n_fft: int, hop: int, win_length: int) -> NDArray[np.complex64]:
    """Transform every frame: channels x frames x frequencies."""
    if x.shape[-1] < 1:
        raise ValueError("a spectrum needs at least one sample, and the waveform has none")
    padded = mirrored(x, n_fft // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft, axis=-1)[..., ::hop, :]
    found = np.fft.rfft(frames * hann(win_length, n_fft), axis=-1)
    return found.astype(np.complex64, copy=False)  # NumPy 1 computes in double precision


def mirrored(x: Wave, width: int) -> Wave:
    """Extend both ends by `width` samples, mirrored at the first and the last one."""
    if x.shape[-1] <= width:
        return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(width, width)], mode="reflect")
    return np.concatenate((x[..., width:0:-1], x, x[..., -2 : -width - 2 : -1]), axis=-1)


def power_spectrum(found: NDArray[np.complex64]) -> Spectrum:
    power: Spectrum = np.square(found.real)
    power += np.square(found.imag)
    return power


@lru_cache(maxsize=16)
def hann(win_length: int, n_fft: int) -> Wave:
    """Return a periodic Hann window, centred in n_fft samples."""
    window = np.zeros(n_fft, dtype=np.float32)
    start = (n_fft - win_length) // 2
    window[start : start + win_length] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(win_length) / win_length)
    window.flags.writeable = False
    return window


# ---- mel bands


class MelBands(NamedTuple):
    """Triangular filters that overlap by half: a frequency between two centres is shared by the lower and the upper band. So two sums per
    interval between centres make all bands."""

    first: int
    """Frequencies below this index, and from `end` on, belong to no band."""
    end: int
    rising: NDArray[np.float32]
    """The upper band's share of each frequency; the lower band gets the rest."""
    starts: NDArray[np.intp]
    """The first frequency of each non-empty interval, counted from `first`."""
    stretches: NDArray[np.intp]
    """The number of each of those intervals; interval 0 ends at the centre of band 0."""
    n_mels: int

    def sums(self, power: Spectrum) -> Spectrum:
        """Sum power by frequency to power by band."""
        found = np.zeros((*power.shape[:-2], self.n_mels + 2, power.shape[-1]), dtype=np.float32)
        if len(self.starts):
            inside = power[..., self.first : self.end, :]
            upper = inside * self.rising[:, None]
            found[..., self.stretches + 1, :] = np.add.reduceat(upper, self.starts, axis=-2)
            lower = np.subtract(inside, upper, out=upper)
            found[..., self.stretches, :] += np.add.reduceat(lower, self.starts, axis=-2)
        return np.ascontiguousarray(found[..., 1:-1, :])


@lru_cache(maxsize=16)
def mel_bands(sample_rate: int, n_mels: int, n_fft: int, f_min: float, f_max: float) -> MelBands:
    low, high = hertz_to_mel(f_min), hertz_to_mel(f_max)
    edges = 700.0 * (10.0 ** (np.linspace(low, high, n_mels + 2) / 2595.0) - 1.0)
    edges[0], edges[-1] = f_min, f_max
    frequencies = np.arange(n_fft // 2 + 1) * (sample_rate / n_fft)
    first, end = np.searchsorted(frequencies, f_min), np.searchsorted(frequencies, f_max)
    inside = frequencies[first:end]
    stretch = np.searchsorted(edges, inside, side="right") - 1
    rising = (inside - edges[stretch]) / (edges[stretch + 1] - edges[stretch])
    numbers, starts = np.unique(stretch, return_index=True)
    return MelBands(int(first), int(end), rising.astype(np.float32), starts, numbers, n_mels)


def hertz_to_mel(frequency: float) -> float:
    """By HTK's formula."""
    return 2595.0 * math.log10(1.0 + frequency / 700.0)


# ---- augmentation


@dataclass(frozen=True)
class SpecAugment(AudioOp):
    """SpecAugment (Park et al., 2019) on frequencies x frames: a time warp, then frequency masks, then time masks.

    As in the paper, a mask's width is drawn from 0 to the limit inclusive, then its start within the rest of the axis. The parameters are
    the paper's W, F, m_F, T, m_T and p.
    """

    time_warp: int = 0
    """A frame at least this far from both ends moves by up to this many frames; short samples are not warped."""
    freq_mask: int = 27
    num_freq_masks: int = 2
    time_mask: int = 100
    num_time_masks: int = 2
    max_time_share: float = 1.0
    """Maximum width of a time mask, as a fraction of the sample."""
    fill: float | None = None
    """Value of masked places; None: the sample's mean (the paper's zero, as it normalises spectra)."""

    is_random = True

    def __post_init__(self) -> None:
        for name in ("time_warp", "freq_mask", "num_freq_masks", "time_mask", "num_time_masks"):
            check_count(name, getattr(self, name), least=0)
        if not 0 <= self.max_time_share <= 1:
            raise ConfigError(f"max_time_share must be between 0 and 1, got {self.max_time_share}")
        if self.fill is not None and not math.isfinite(self.fill):
            raise ConfigError(f"fill must be a finite number, or None for the mean, got {self.fill}")

    def draw(self, draws: Draws, shape: Shape) -> Drawn:
        """Draw the frame to warp and its shift, then start and width of every mask."""
        bands, frames = shape[-2:]
        warp = self.warp(draws, frames)
        widest = min(self.time_mask, int(self.max_time_share * frames))
        masks = [(self.freq_mask, bands)] * self.num_freq_masks + [(widest, frames)] * self.num_time_masks
        return (*warp, *(number for limit, length in masks for number in mask(draws, limit, length)))

    def warp(self, draws: Draws, frames: int) -> tuple[int, float]:
        places = frames - 2 * self.time_warp - 1
        if self.time_warp == 0 or places < 1:
            return 0, 0.0
        return self.time_warp + 1 + draws.below(places), draws.uniform(-self.time_warp, self.time_warp)

    def apply(self, x: Spectrum, drawn: Drawn) -> Spectrum:
        centre, shift, *masks = drawn
        fill = self.fill if self.fill is not None else float(np.mean(x, dtype=np.float64)) if x.size else 0.0
        found = warped(x, centre, shift) if shift else x.copy()
        for at in range(0, len(masks), 2):
            start, end = int(masks[at]), int(masks[at] + masks[at + 1])
            if at < 2 * self.num_freq_masks:
                found[..., start:end, :] = fill
            else:
                found[..., start:end] = fill
        return found


def mask(draws: Draws, limit: int, length: int) -> tuple[int, int]:
    width = draws.below(min(limit, length) + 1)
    return draws.below(max(1, length - width)), width


def warped(x: Spectrum, centre: float, shift: float) -> Spectrum:
    """Move the frame at `centre` by `shift`, keep the ends, and resample linearly between."""
    last = x.shape[-1] - 1
    source = np.interp(np.arange(last + 1), (0.0, centre + shift, last), (0.0, centre, last))
    left = np.minimum(source.astype(np.intp), max(0, last - 1))
    share = (source - left).astype(np.float32)
    found: Spectrum = x[..., left] * (1 - share) + x[..., np.minimum(left + 1, last)] * share
    return found
