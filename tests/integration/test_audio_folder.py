"""Folders of recordings through the loader: the same batches whoever prepares them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import ConfigError, DataLoader
from penstock.pipeline.audio import AudioFolder, BadAudio
from penstock.transforms.audio import AddNoise, Gain, PadOrCut
from penstock.transforms.base import Compose
from penstock.transforms.ops import CenterCrop, Lambda
from penstock.transforms.spectra import LogMel, SpecAugment

soundfile = pytest.importorskip("soundfile")

RATE = 8_000
CHAIN = [
    PadOrCut(1_600),
    Gain((-6, 6)),
    AddNoise((10, 30)),
    LogMel(RATE, n_mels=16, n_fft=256, hop_length=80),
    SpecAugment(time_warp=3, freq_mask=4, time_mask=5),
]


def write(path: Path, number: int, rate: int = RATE, channels: int = 1) -> None:
    samples = rate // 8 + 97 * number
    tone = 0.3 * np.sin(2 * np.pi * (200 + 30 * number) * np.arange(samples) / rate)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.repeat(tone[:, None], channels, axis=1), rate)


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    for number in range(20):
        suffix = ("wav", "FLAC")[number % 2]
        write(tmp_path / ("no", "yes")[number // 10] / f"deep{number % 3}" / f"{number:02}.{suffix}", number)
    (tmp_path / "no" / "notes.txt").write_text("not audio")
    return tmp_path


def epochs(dataset: Any, **how: Any) -> list[Any]:
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=6, shuffle=True, seed=3, **how)
    return [(x.numpy().tobytes(), tuple(x.shape), y.tolist()) for _ in range(2) for x, y in loader]


def test_batches_are_the_same_bit_for_bit_with_and_without_workers(recordings: Path) -> None:
    alone = epochs(AudioFolder(recordings, CHAIN), num_workers=0)
    assert [shape for _, shape, _ in alone] == [(6, 1, 16, 21)] * 3 + [(2, 1, 16, 21)] + [
        (6, 1, 16, 21)
    ] * 3 + [(2, 1, 16, 21)]
    assert len({data for data, _, _ in alone}) == 8  # other draws in every batch and epoch
    assert epochs(AudioFolder(recordings, CHAIN), num_workers=2) == alone


def test_files_are_found_and_numbered_as_in_a_folder_of_images(recordings: Path) -> None:
    data = AudioFolder(recordings)
    assert data.classes == ["no", "yes"]
    assert data.class_to_idx == {"no": 0, "yes": 1}
    assert len(data) == 20
    assert data.targets == [0] * 10 + [1] * 10
    names = [
        Path(path).relative_to(recordings / "no").as_posix() for path, target in data.samples if not target
    ]
    assert names == sorted(names)
    assert {Path(name).suffix for name in names} == {".wav", ".FLAC"}
    wave, target = data[-1]
    assert (wave.dtype, wave.ndim, wave.shape[0], target) == (torch.float32, 2, 1, 1)
    with pytest.raises(IndexError, match="sample 20 of 20"):
        data[20]


def test_classes_can_come_from_a_function_of_the_path(recordings: Path) -> None:
    by_number = AudioFolder(
        recordings, classes=lambda path: int(path.stem) % 3, target_transform=lambda t: 10 * t
    )
    assert sorted(set(by_number.targets)) == [0, 1, 2]
    path, target = by_number.samples[4]
    assert target == int(Path(path).stem) % 3
    assert by_number[4][1] == 10 * target
    by_name = AudioFolder(recordings, classes=lambda path: "even" if int(path.stem) % 2 == 0 else "aah")
    assert (by_name.classes, by_name.class_to_idx) == (["aah", "even"], {"aah": 0, "even": 1})
    with pytest.raises(ConfigError, match="it gave int, str"):
        AudioFolder(recordings, classes=lambda path: 1 if path.suffix == ".wav" else "x")
    with pytest.raises(ConfigError, match="classes must be 'folder' or a function"):
        AudioFolder(recordings, classes="names")


def test_folders_without_audio_are_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Couldn't find any class folder"):
        AudioFolder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        FileNotFoundError, match=r"for the classes empty\. Supported extensions are: \.wav, \.flac"
    ):
        AudioFolder(tmp_path)
    with pytest.raises(FileNotFoundError, match="Found no file below"):
        AudioFolder(tmp_path, classes=lambda path: path.name)


def test_recordings_of_other_rates_are_brought_to_one(tmp_path: Path) -> None:
    pytest.importorskip("soxr")
    write(tmp_path / "a" / "0.wav", 0, rate=8_000)
    write(tmp_path / "a" / "1.wav", 0, rate=16_000, channels=2)
    assert [tuple(x.shape) for x, _ in AudioFolder(tmp_path)] == [(1, 1_000), (2, 2_000)]
    assert [tuple(x.shape) for x, _ in AudioFolder(tmp_path, sample_rate=8_000)] == [(1, 1_000), (2, 1_000)]
    with pytest.raises(ConfigError, match="sample_rate must be a whole number"):
        AudioFolder(tmp_path, sample_rate=0)


def test_the_identity_is_that_of_rate_ops_and_parameters(recordings: Path) -> None:
    def identity(transform: Any, **how: Any) -> str:
        return AudioFolder(recordings, transform, **how).identity

    assert identity(CHAIN) == identity(Compose([Compose(CHAIN[:2]), *CHAIN[2:]]))
    others = [
        CHAIN[1:],
        CHAIN[::-1],
        [*CHAIN[:-1], SpecAugment()],
        None,
        [Lambda(np.abs)],
        [Lambda(np.square)],
    ]
    found = {identity(CHAIN), identity(CHAIN, sample_rate=RATE), *map(identity, others)}
    assert len(found) == 8


def test_each_op_has_random_numbers_of_its_own(recordings: Path) -> None:
    chain = AudioFolder(recordings, [Gain((-6, 6)), Gain((-6, 6))]).chain
    x = np.ones((1, 4), np.float32)
    first, both = AudioFolder(recordings, Gain((-6, 6))).chain.through(x, 9), chain.through(x, 9)
    assert (both / first).tolist() != first.tolist()
    assert chain.through(x, 9).tolist() == both.tolist() != chain.through(x, 10).tolist()


def test_functions_of_the_user_may_change_the_shape(recordings: Path) -> None:
    twice = AudioFolder(recordings, [Lambda(lambda x: np.concatenate((x, x), -1)), PadOrCut(8_000)])
    assert all(x.shape == (1, 8_000) for x, _ in twice)
    assert twice.chain.is_random
    with pytest.raises(ConfigError, match=r"CenterCrop.* is no op for audio"):
        AudioFolder(recordings, [CenterCrop(3)])


def test_a_folder_can_be_sent_to_another_process(recordings: Path) -> None:
    data = AudioFolder(recordings, CHAIN, classes=lambda path: int(path.stem))
    sent = pickle.loads(pickle.dumps(data))
    assert (sent.samples, sent.identity) == (data.samples, data.identity)
    assert len(pickle.dumps(data)) < 10_000


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_file_is_named(recordings: Path, workers: int) -> None:
    broken = recordings / "yes" / "deep0" / "12.wav"
    broken.write_bytes(broken.read_bytes()[:-300])
    loader: DataLoader[Any] = DataLoader(AudioFolder(recordings, CHAIN), batch_size=5, num_workers=workers)
    with pytest.raises(BadAudio, match=r"12\.wav: the file is cut off"):
        list(loader)


def test_a_broken_file_can_be_skipped(recordings: Path) -> None:
    (recordings / "yes" / "deep0" / "12.wav").write_bytes(b"RIFF")
    loader: DataLoader[Any] = DataLoader(AudioFolder(recordings, CHAIN), 5, num_workers=2, on_error="skip")
    assert sum(len(y) for _, y in loader) == 19
