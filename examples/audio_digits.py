"""Spoken digits: a small network learns them from log-mel spectra with SpecAugment, prepared by penstock.

    python examples/audio_digits.py --data DIR     recordings DIR/DIGIT_SPEAKER_N.wav at 8 kHz, as in the Free Spoken Digit Dataset
    python examples/audio_digits.py                generated chirps, one kind per digit
    python examples/audio_digits.py --quick        the same, smaller: a few seconds
    python examples/audio_digits.py --reuse 3      spectra are stored and used three times; SpecAugment's masks are drawn anew

Recordings with N below 5 are held out. The exit code is 1 if fewer than 90 % of them are recognised.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import penstock
from penstock import AudioFolder
from penstock.transforms import AddNoise, Gain, LogMel, PadOrCut, SpecAugment

RATE = 8_000
HELD_OUT = 5
NEEDED = 0.90

LENGTH = PadOrCut(RATE)
SPECTRUM = LogMel(RATE, n_mels=40, n_fft=256, hop_length=100)
LEARNING = [
    LENGTH,
    Gain((-6, 6)),
    AddNoise((10, 40)),
    SPECTRUM,
    SpecAugment(time_warp=5, freq_mask=6, time_mask=10, max_time_share=0.2),
]
TESTING = [LENGTH, SPECTRUM]


def main() -> int:
    options = arguments()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1 if options.workers else 2)  # the workers want the cores too
    with tempfile.TemporaryDirectory() as made:
        folder = options.data
        if folder is None:
            folder = Path(made)
            make_chirps(folder, repetitions=20 if options.quick else 40)
        began = time.monotonic()
        accuracy = train(folder, options)
    print(f"{accuracy:.1%} of the held-out recordings are recognised, after {time.monotonic() - began:.0f} s")
    return 0 if accuracy >= NEEDED else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Learn spoken digits.")
    parser.add_argument("--data", type=Path, help="folder of recordings named DIGIT_SPEAKER_N.wav")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--reuse", type=int, default=1, metavar="R", help="uses of each spectrum (1: none is kept)"
    )
    parser.add_argument("--quick", action="store_true", help="little data, few epochs")
    options = parser.parse_args()
    options.batch = options.batch or (16 if options.quick else 32)
    options.epochs = options.epochs or (6 if options.quick else 8)
    return options


def digit_of(path: Path) -> int:
    return int(path.stem.split("_")[0])


def repetition_of(path: str) -> int:
    return int(Path(path).stem.split("_")[2])


def train(folder: Path, options: argparse.Namespace) -> float:
    """Accuracy on the held-out recordings after the last epoch."""
    learning = AudioFolder(folder, LEARNING, sample_rate=RATE, classes=digit_of)
    testing = AudioFolder(folder, TESTING, sample_rate=RATE, classes=digit_of)
    learning.samples = [sample for sample in learning.samples if repetition_of(sample[0]) >= HELD_OUT]
    testing.samples = [sample for sample in testing.samples if repetition_of(sample[0]) < HELD_OUT]
    print(f"{len(learning)} recordings to learn from, {len(testing)} held out")
    how: dict[str, Any] = {"batch_size": options.batch, "num_workers": options.workers, "seed": options.seed}
    reuse = penstock.Reuse(times=options.reuse, split="SpecAugment")  # what comes before it is kept
    loader: penstock.DataLoader[Any] = penstock.DataLoader(
        learning, shuffle=True, persistent_workers=options.workers > 0, reuse=reuse, **how
    )
    tests: penstock.DataLoader[Any] = penstock.DataLoader(testing, **how)

    net = network()
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    pace = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=4e-3, total_steps=options.epochs * len(loader)
    )
    accuracy = 0.0
    for epoch in range(1, options.epochs + 1):
        net.train()
        total = 0.0
        for spectra, digits in penstock.progress(loader, f"epoch {epoch}/{options.epochs}"):
            loss = nn.functional.cross_entropy(net(spectra), digits, label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            pace.step()
            total += loss.item()
        line = f"epoch {epoch}: loss {total / len(loader):.3f}"
        if epoch == options.epochs or epoch % 4 == 0:
            accuracy = share_right(net, tests)
            line += f", held-out accuracy {accuracy:.1%}"
        print(line, flush=True)
    print(loader.diagnose())
    if options.reuse > 1:
        found = loader.stats()["reuse"]["diversity"]
        print(f"{found['measured']:.1f} different draws in {found['uses']:.0f} uses of a recording")
    return accuracy


def share_right(net: nn.Module, tests: penstock.DataLoader[Any]) -> float:
    net.eval()
    right = count = 0
    with torch.inference_mode():
        for spectra, digits in tests:
            right += int((net(spectra).argmax(1) == digits).sum())
            count += len(digits)
    return right / count


def network() -> nn.Sequential:
    layers: list[nn.Module] = [nn.BatchNorm2d(1)]
    before = 1
    for width in (16, 32, 64, 96):
        layers += [
            nn.Conv2d(before, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        before = width
    return nn.Sequential(
        *layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(before, 10)
    )


def make_chirps(folder: Path, repetitions: int) -> None:
    """Recordings of machines: each digit a pair of glides, each speaker another pitch, each repetition other noise."""
    for digit in range(10):
        for speaker, pitch in (("ann", 1.0), ("bob", 0.92)):
            for number in range(repetitions):
                rng = np.random.default_rng((digit, round(100 * pitch), number))
                write_wav(folder / f"{digit}_{speaker}_{number}.wav", chirp(digit, pitch, rng))


def chirp(digit: int, pitch: float, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Half a second or so: the first half glides to one of five tones, the second up or down from there."""
    samples = int(RATE * rng.uniform(0.4, 0.7))
    at = np.linspace(0, 1, samples)
    middle = 400.0 * 1.5 ** (digit % 5)
    end = middle * (1.6 if digit < 5 else 0.6)
    tone = np.interp(at, (0, 0.5, 1), (900.0, middle, end)) * pitch * rng.uniform(0.95, 1.05)
    phase = 2 * np.pi * np.cumsum(tone) / RATE
    wave_form = np.sin(phase) + 0.4 * np.sin(2 * phase + rng.uniform(0, 6))
    return 0.25 * wave_form * np.sin(np.pi * at) + 0.01 * rng.standard_normal(samples)


def write_wav(path: Path, samples: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes((np.clip(samples, -1, 1) * 32_767).astype("<i2").tobytes())


if __name__ == "__main__":
    sys.exit(main())
