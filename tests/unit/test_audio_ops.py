"""Audio ops against plain references written from their definitions, and what they draw."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.transforms.audio import AddNoise, AudioOp, Gain, PadOrCut, Resample, white_noise
from penstock.transforms.draws import Draws
from penstock.transforms.spectra import STFT, LogMel, SpecAugment, Spectrogram, mel_bands

RATE = 16_000
STFT_BOUND = 2e-6
"""Of the largest magnitude: float32 transforms against double precision."""
LOG_BOUND = 1e-4
"""Of a log-mel value above -5, against double precision."""
DRAWS = 10_000
needs_soxr = pytest.mark.skipif(find_spec("soxr") is None, reason="needs soxr")


def noise(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return 0.1 * np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def sine(frequency: float, samples: int = RATE, rate: int = RATE) -> NDArray[np.float32]:
    return np.sin(2 * np.pi * frequency * np.arange(samples) / rate).astype(np.float32)[None]


def run(op: AudioOp, x: Any, seed: int = 1) -> Any:
    return op.apply(x, op.draw(Draws(seed), x.shape))


# ---- references, from the definitions, in double precision


def plain_stft(x: NDArray[Any], n_fft: int, hop: int, win_length: int) -> NDArray[np.complex128]:
    """sum over n of w[n] x[n + t hop] exp(-2 pi i k n / n_fft), of the signal mirrored at its ends."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (n_fft // 2, n_fft // 2)), mode="reflect")
    window = np.zeros(n_fft)
    start = (n_fft - win_length) // 2
    window[start : start + win_length] = np.sin(np.pi * np.arange(win_length) / win_length) ** 2
    matrix = np.exp(-2j * np.pi * np.outer(np.arange(n_fft // 2 + 1), np.arange(n_fft)) / n_fft)
    count = 1 + (padded.shape[1] - n_fft) // hop
    frames = np.stack([padded[:, t * hop : t * hop + n_fft] * window for t in range(count)])
    return np.einsum("kn,tcn->ckt", matrix, frames)


def plain_filters(rate: int, n_mels: int, n_fft: int, f_min: float, f_max: float) -> NDArray[np.float64]:
    """Triangles on HTK's scale, mel = 2595 log10(1 + f / 700): 0 at both neighbours' centres, 1 at their own."""
    low, high = (2595 * math.log10(1 + f / 700) for f in (f_min, f_max))
    centres = [700 * (10 ** (mel / 2595) - 1) for mel in np.linspace(low, high, n_mels + 2)]
    filters = np.zeros((n_mels, n_fft // 2 + 1))
    for m in range(n_mels):
        left, centre, right = centres[m : m + 3]
        for k in range(n_fft // 2 + 1):
            f = k * rate / n_fft
            filters[m, k] = max(0.0, min((f - left) / (centre - left), (right - f) / (right - centre)))
    return filters


@pytest.mark.parametrize(
    ("n_fft", "hop", "win"), [(400, 160, None), (256, 64, 200), (255, 100, 255), (64, 64, 33)]
)
def test_a_spectrum_is_the_one_of_the_definition(n_fft: int, hop: int, win: int | None) -> None:
    x = noise(2, 3_001)
    expected = plain_stft(x, n_fft, hop, win or n_fft)
    bound = STFT_BOUND * np.abs(expected).max()
    found = STFT(n_fft, hop, win, power=None).apply(x, ())
    assert found.dtype == np.complex64
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < bound
    assert np.abs(STFT(n_fft, hop, win, power=1.0).apply(x, ()) - np.abs(expected)).max() < bound
    for power in (2.0, 0.5):
        found = Spectrogram(n_fft, hop, win, power=power).apply(x, ())
        assert found.dtype == np.float32
        assert np.allclose(found, np.abs(expected) ** power, rtol=1e-3, atol=1e-5)


def test_a_sample_shorter_than_a_window_has_a_spectrum() -> None:
    for samples in (1, 2, 7, 199, 200, 201):
        assert STFT(400, 160).apply(noise(1, samples), ()).shape == (1, 201, 1 + samples // 160)
    with pytest.raises(ValueError, match="at least one sample"):
        STFT(400, 160).apply(noise(1, 0), ())


@pytest.mark.parametrize(
    "op",
    [
        LogMel(RATE),
        LogMel(8_000, n_mels=40, n_fft=256, hop_length=80, f_min=60.0, f_max=3_800.0),
        LogMel(RATE, n_mels=128, n_fft=400),  # some bands hold no frequency at all
        LogMel(RATE, n_mels=1, n_fft=512, f_max=125.0),
    ],
)
def test_log_mel_bands_are_those_of_the_definition(op: LogMel) -> None:
    x = noise(2, 4_000)
    power = np.abs(plain_stft(x, op.n_fft, op.hop_length, op.n_fft)) ** 2
    filters = plain_filters(op.sample_rate, op.n_mels, op.n_fft, op.f_min, op.highest)
    expected = np.log(np.maximum(1e-10, filters @ power))
    found = op.apply(x, ())
    assert found.dtype == np.float32
    assert found.shape == (2, op.n_mels, 1 + 4_000 // op.hop_length)
    heard = expected > -5
    assert heard.any()
    assert np.abs(found - expected)[heard].max() < LOG_BOUND
    assert np.allclose(found, expected, rtol=1e-4, atol=0.05)


def test_silence_has_the_floor_for_its_logarithm() -> None:
    assert np.allclose(LogMel(RATE).apply(np.zeros((1, 800), np.float32), ()), math.log(1e-10))
    assert np.allclose(LogMel(RATE, floor=1.0).apply(np.zeros((1, 800), np.float32), ()), 0.0)


def test_the_power_of_all_frequencies_is_shared_out_between_bands() -> None:
    # Between the first centre and the last, the triangles add up to 1.
    bands = mel_bands(RATE, 40, 512, 0.0, 8_000.0)
    flat = np.ones((257, 3), np.float32)
    filters = plain_filters(RATE, 40, 512, 0.0, 8_000.0)
    assert np.allclose(bands.sums(flat), filters.sum(axis=1)[:, None], rtol=1e-5)


# ---- waveforms


@needs_soxr
@pytest.mark.parametrize(("old", "new"), [(8_000, 16_000), (44_100, 16_000), (16_000, 11_025)])
def test_resampling_keeps_frequency_and_level(old: int, new: int) -> None:
    x = np.concatenate((sine(440, old, old), 0.5 * sine(1_000, old, old)))  # a second of two channels
    found = run(Resample(old, new), x)
    assert found.shape == (2, new)
    assert found.dtype == np.float32
    for channel, frequency, level in ((0, 440, 1.0), (1, 1_000, 0.5)):
        spectrum = np.abs(np.fft.rfft(found[channel]))  # a second: bins are hertz
        assert int(spectrum.argmax()) == frequency
        assert np.sqrt(2 * np.mean(found[channel] ** 2)) == pytest.approx(level, rel=0.01)


@needs_soxr
def test_resampling_removes_what_the_new_rate_cannot_hold() -> None:
    found = run(Resample(16_000, 8_000), sine(6_000))[:, 500:-500]  # its ends are clicks
    assert np.sqrt(np.mean(found**2)) < 1e-3


@needs_soxr
@pytest.mark.parametrize("samples", [100, 999, 12_345])
def test_resampling_gives_the_length_to_the_nearest_sample(samples: int) -> None:
    assert abs(run(Resample(44_100, 16_000), noise(1, samples)).shape[1] - samples * 16_000 / 44_100) <= 0.5


def test_resampling_to_the_same_rate_changes_nothing() -> None:
    x = noise(1, 100)
    assert run(Resample(8_000, 8_000), x) is x


@pytest.mark.parametrize("snr_db", [-10.0, 0.0, 25.0])
def test_noise_has_the_drawn_ratio_to_the_signal(snr_db: float) -> None:
    x = 0.3 * sine(440)
    added = run(AddNoise(snr_db), x) - x
    measured = 10 * math.log10(np.mean(x.astype(np.float64) ** 2) / np.mean(added.astype(np.float64) ** 2))
    assert measured == pytest.approx(snr_db, abs=0.01)
    spectrum = np.abs(np.fft.rfft(added[0])) ** 2
    quarters = [part.mean() for part in np.array_split(spectrum, 4)]
    assert max(quarters) / min(quarters) < 1.3  # white


def test_ratios_are_drawn_evenly_from_their_range() -> None:
    op = AddNoise((5.0, 25.0))
    found = np.array([op.draw(Draws(seed), (1, 10))[0] for seed in range(DRAWS)])
    assert found.min() >= 5
    assert found.max() < 25
    counts, _ = np.histogram(found, bins=10, range=(5, 25))
    assert chi_squared(counts) < 28  # 9 degrees of freedom: 1 in 1000


def test_the_noise_of_a_seed_is_known() -> None:
    # As NumPy documents Philox with a key; other machines and versions must make the same samples of the same draw.
    assert white_noise(7, (4,)).tolist() == pytest.approx([-0.293339, 1.703831, 1.539192, 0.636754], abs=1e-6)
    assert (white_noise(2**64 - 1, (2, 3)) == white_noise(2**64 - 1, (2, 3))).all()
    assert not (white_noise(7, (4,)) == white_noise(8, (4,))).any()


def test_noise_on_silence_is_silence() -> None:
    assert not run(AddNoise((0.0, 10.0)), np.zeros((1, 50), np.float32)).any()
    assert run(AddNoise(3.0), np.zeros((1, 0), np.float32)).shape == (1, 0)


def test_gain_is_in_decibels() -> None:
    x = noise(2, 100)
    assert np.allclose(run(Gain(-6.0206), x), x / 2, rtol=1e-5)
    assert run(Gain((-3, 3)), x).dtype == np.float32


def test_longer_samples_are_cut_anywhere_and_shorter_ones_padded() -> None:
    x = np.arange(10, dtype=np.float32)[None]
    starts = {float(run(PadOrCut(7), x, seed)[0, 0]) for seed in range(200)}
    assert starts == {0.0, 1.0, 2.0, 3.0}
    assert run(PadOrCut(7), x).shape == (1, 7)
    assert run(PadOrCut(10), x).tolist() == x.tolist()
    assert run(PadOrCut(12), x).tolist() == [[*range(10), 0, 0]]


# ---- SpecAugment


def masks_of(op: SpecAugment, shape: tuple[int, int, int], count: int = DRAWS) -> NDArray[np.float64]:
    """Start and width of every mask, draws x masks x 2."""
    drawn = [op.draw(Draws(seed * 7919), shape)[2:] for seed in range(count)]
    return np.array(drawn).reshape(count, -1, 2)


def chi_squared(counts: NDArray[Any]) -> float:
    mean = counts.mean()
    return float(((counts - mean) ** 2 / mean).sum())


def test_masks_have_every_width_up_to_the_limit_equally_often() -> None:
    masks = masks_of(SpecAugment(freq_mask=9, time_mask=19), (1, 64, 200))
    assert masks.shape[1:] == (4, 2)
    for at, limit, bound in ((0, 9, 28), (1, 9, 28), (2, 19, 44), (3, 19, 44)):  # 9 and 19 degrees of freedom
        widths = masks[:, at, 1].astype(int)
        assert widths.min() == 0
        assert widths.max() == limit
        assert chi_squared(np.bincount(widths)) < bound


def test_masks_lie_within_the_spectrum_wherever_there_is_room() -> None:
    masks = masks_of(SpecAugment(freq_mask=27, time_mask=100), (1, 40, 60))
    for at, length in ((0, 40), (1, 40), (2, 60), (3, 60)):
        start, width = masks[:, at, 0], masks[:, at, 1]
        assert width.max() == (27 if length == 40 else 60)
        assert start.min() == 0
        assert (start + width).max() <= length
        narrow = start[width <= 3]
        assert narrow.max() >= length - 6  # none of the axis is out of reach


def test_no_mask_is_wider_than_the_share_of_the_sample_that_is_allowed() -> None:
    masks = masks_of(SpecAugment(time_mask=100, max_time_share=0.2), (1, 40, 60), count=1_000)
    assert masks[:, 2:, 1].max() == 12


def test_masked_places_become_the_mean_and_all_others_stay() -> None:
    x = noise(2, 64, 200)
    op = SpecAugment(freq_mask=10, time_mask=30)
    before = x.copy()
    for seed in range(20):
        drawn = op.draw(Draws(seed), x.shape)
        found = op.apply(x, drawn)
        masked = np.zeros((64, 200), bool)
        for start, width in np.array(drawn[2:6], int).reshape(-1, 2):
            masked[start : start + width] = True
        for start, width in np.array(drawn[6:10], int).reshape(-1, 2):
            masked[:, start : start + width] = True
        assert np.allclose(found[:, masked], x.mean(), atol=1e-6)
        assert (found[:, ~masked] == x[:, ~masked]).all()
    assert (x == before).all()
    assert (run(SpecAugment(fill=-4.0, freq_mask=64, num_freq_masks=9), x) == -4.0).any()


def test_a_warp_moves_one_frame_and_keeps_the_ends() -> None:
    op = SpecAugment(time_warp=20, num_freq_masks=0, num_time_masks=0)
    x = np.arange(100, dtype=np.float32)[None, None].repeat(3, axis=1)  # each frame says where it was
    moved = []
    for seed in range(300):
        centre, shift = drawn = op.draw(Draws(seed), x.shape)
        assert 20 < centre < 80
        assert abs(shift) <= 20
        moved.append(shift)
        found = op.apply(x, drawn)[0]
        assert found.dtype == np.float32
        assert (found == found[0]).all()
        assert (found[0, 0], found[0, -1]) == (0.0, 99.0)
        to = centre + shift  # where the frame at the centre goes; on both sides of it time runs evenly
        for t in range(100):
            source = t * centre / to if t < to else 99 - (99 - t) * (99 - centre) / (99 - to)
            assert found[0, t] == pytest.approx(source, abs=1e-4)
    assert abs(np.mean(moved)) < 3 * 20 / math.sqrt(3 * 300)


def test_a_sample_too_short_to_be_warped_stays_as_it_is() -> None:
    op = SpecAugment(time_warp=20, num_freq_masks=0, num_time_masks=0)
    assert op.draw(Draws(1), (1, 8, 42))[0] == 21
    x = noise(1, 8, 41)
    assert op.draw(Draws(1), x.shape) == (0, 0.0)
    assert (run(op, x) == x).all()


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 8, 0), (2, 3, 2)])
def test_the_smallest_spectra_can_be_masked(shape: tuple[int, ...]) -> None:
    for seed in range(50):
        assert run(SpecAugment(time_warp=2), noise(*shape), seed).shape == shape


# ---- all ops


OPS = [
    pytest.param(Resample(16_000, 8_000), marks=needs_soxr),
    AddNoise((0, 20)),
    Gain((-6, 6)),
    PadOrCut(300),
    STFT(64, 32),
    LogMel(RATE, n_mels=8),
    SpecAugment(time_warp=3, freq_mask=3, time_mask=5),
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_the_same_seed_gives_the_same_result_and_nothing_given_is_changed(op: AudioOp) -> None:
    x = noise(2, 40, 50) if isinstance(op, SpecAugment) else noise(2, 1_000)
    before = x.copy()
    drawn = op.draw(Draws(5), x.shape)
    assert drawn == op.draw(Draws(5), x.shape)
    assert all(type(number) in (int, float) for number in drawn)
    first, second = op.apply(x, drawn), op.apply(x, drawn)
    assert (first == second).all()
    assert (x == before).all()
    assert op.is_random == (len({op.draw(Draws(seed), x.shape) for seed in range(20)}) > 1)
    assert op.identity() == type(op)(**dict(op.identity()[1:])).identity()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Resample(0, 8_000), "orig_freq must be a whole number of at least 1, got 0"),
        (lambda: Resample(8_000, 16_000.5), "new_freq must be a whole number"),  # type: ignore[arg-type]
        (lambda: Resample(8_000, 16_000, "best"), "quality must be one of QQ"),
        (lambda: AddNoise((20, 10)), "snr_db must be finite, the lower limit first"),
        (lambda: AddNoise((1, 2, 3)), "snr_db must be a number or"),
        (lambda: AddNoise("loud"), "snr_db must be a number or"),  # type: ignore[arg-type]
        (lambda: Gain(math.inf), "gain_db must be finite"),
        (lambda: PadOrCut(0), "samples must be a whole number of at least 1"),
        (lambda: STFT(400, 0), "hop_length must be"),
        (lambda: STFT(400, 160, 401), "win_length must not be above n_fft=400, got 401"),
        (lambda: STFT(400, 160, power=0), "power must be above 0"),
        (lambda: LogMel(16_000, n_mels=0), "n_mels must be"),
        (lambda: LogMel(16_000, f_max=9_000), r"f_max <= sample_rate / 2 = 8000, got 0 and 9000"),
        (lambda: LogMel(16_000, f_min=500, f_max=400), "f_min < f_max"),
        (lambda: LogMel(16_000, floor=0), "floor must be above 0"),
        (lambda: SpecAugment(freq_mask=-1), "freq_mask must be a whole number of at least 0, got -1"),
        (lambda: SpecAugment(max_time_share=1.5), "max_time_share must be between 0 and 1"),
        (lambda: SpecAugment(fill=math.nan), "fill must be a finite number"),
    ],
)
def test_a_parameter_that_cannot_work_is_refused(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()
