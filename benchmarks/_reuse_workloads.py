"""What `scripts/bench reuse` prepares: photos, as W1 and W3 and with three layers of RandAugment, and recordings of speech-like sound."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _gpu_chains import SIDE, Repeated, arranged, photo_root
from _prepare_data import CACHE
from _prepare_subjects import MEAN, STD

import penstock
from penstock import transforms as T  # noqa: N812

AUDIO, LAYERS = "audio", "layers"
RATE, LONGEST_S = 16_000, 8
RECORDINGS = 200


def root_of(workload: str, data: str | None, generate: int) -> Path:
    """The folder with a workload's samples, made if need be."""
    return recordings() if workload == AUDIO else photo_root(data, generate)


def dataset_of(workload: str, root: Path, samples: int) -> Any:
    """So many samples at least: those in the folder, again and again."""
    dataset: Any
    if workload == AUDIO:
        dataset = penstock.AudioFolder(str(root), chain_of(workload), sample_rate=RATE)
    else:
        dataset = penstock.ImageFolder(str(root), chain_of(workload), fast_decode=True)
    dataset.samples = Repeated(dataset.samples, samples)
    dataset.length = len(dataset.samples)
    return dataset


def chain_of(workload: str) -> Any:
    if workload == AUDIO:  # SpecAugment's policy for LibriSpeech, doubled, behind what is usual for waveforms
        spectra = T.LogMel(RATE, n_mels=80, n_fft=400, hop_length=160)
        masks = T.SpecAugment(time_warp=80, freq_mask=27, num_freq_masks=2, time_mask=100, num_time_masks=2)
        return [T.PadOrCut(LONGEST_S * RATE), T.Gain((-6, 6)), T.AddNoise((10, 40)), spectra, masks]
    crop = [T.RandomResizedCrop(SIDE), T.RandomHorizontalFlip()]
    tail = [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    layers = [T.RandAugment(1, 9)] * (3 if workload == LAYERS else 2)
    return T.Compose(arranged(workload, crop, layers, tail))


def recordings() -> Path:
    """Tones with syllables in noise, 2 to 10 s, as FLAC: what a decoder and a spectrum cost does not depend on what is said."""
    import soundfile

    root = CACHE / f"recordings-{RECORDINGS}"
    if (root / ".whole").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    folder = root / "recordings"
    folder.mkdir(parents=True)
    for number in range(RECORDINGS):
        rng = np.random.default_rng(number)
        at = np.arange(int(RATE * rng.uniform(2, 10))) / RATE
        tone = sum(np.sin(2 * np.pi * f * at + rng.uniform(0, 6)) / f for f in rng.uniform(80, 3000, 12))
        syllables = np.clip(np.sin(2 * np.pi * rng.uniform(2, 5) * at), 0, 1)
        found = tone * syllables / np.abs(tone).max() * 0.5 + 0.003 * rng.standard_normal(len(at))
        soundfile.write(folder / f"{number:05}.flac", found, RATE, subtype="PCM_16")
    (root / ".whole").touch()
    return root
