"""`reuse=` of recordings: what the first ops make of a sound is kept as it is, and nobody can tell from the batches."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import AudioFolder, ConfigError, DataLoader, Reuse
from penstock import transforms as T
from penstock.cli.main import main
from penstock.pipeline.op_costs import cut_costs, parts_of
from penstock.plan.renewal import Renewal
from penstock.reuse.stores.chunks import room_beside
from tests.deaths import kill_all

soundfile = pytest.importorskip("soundfile")
RATE, SAMPLES = 8_000, 24
CHAIN = [
    T.PadOrCut(1_600),
    T.Gain((-6, 6)),
    T.LogMel(RATE, n_mels=16, n_fft=256, hop_length=80),
    T.SpecAugment(time_warp=3, freq_mask=4, time_mask=5),
]
WORKERS = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recordings")
    for number in range(SAMPLES):
        path = root / ("no", "yes")[number % 2] / f"{number:02}.{('wav', 'flac')[number % 3 == 0]}"
        path.parent.mkdir(exist_ok=True)
        rng = np.random.default_rng(number)
        soundfile.write(path, 0.1 * rng.standard_normal(1500 + 97 * number), RATE)
    return root


def loader_of(root: Path, chain: Any = None, split: int | str = 3, **options: Any) -> DataLoader[Any]:
    dataset = AudioFolder(root, CHAIN if chain is None else chain, lambda target: target * 10)
    reuse = options.pop("reuse", None) or Reuse(times=3, split=split)
    return DataLoader(dataset, 5, shuffle=True, seed=5, reuse=reuse, **options)


def epochs(loader: DataLoader[Any], count: int) -> list[list[Any]]:
    return [
        [(x.numpy().tobytes(), tuple(x.shape), x.dtype, y.tolist()) for x, y in loader] for _ in range(count)
    ]


@WORKERS
@pytest.mark.parametrize("split", [0, 2, 3, 4])
def test_batches_are_those_of_loaders_that_never_kept_anything(
    recordings: Path, workers: int, split: int
) -> None:
    """Split before a sum of floats (the spectra, their mean), whose last bits depend on how values lie in memory."""
    loader = loader_of(recordings, split=split, num_workers=workers)
    found = epochs(loader, 5)
    stats = loader.stats()["reuse"]
    assert stats["entries"] == stats["kept"] == SAMPLES
    assert stats["missed"] == sum(Renewal(SAMPLES, SAMPLES, 3, 5).misses(epoch) for epoch in range(5))
    assert {x[2] for x in found[0]} == {torch.float32}
    for epoch, batches in enumerate(found):
        fresh = loader_of(recordings, split=split)
        fresh.set_epoch(epoch)
        assert batches == epochs(fresh, 1)[0], epoch


def test_they_are_kept_on_disk_too_for_a_run(
    recordings: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_disk = Reuse(times=3, split=3, store="disk", path=tmp_path / "kept", persistent=True)
    loader = loader_of(recordings, reuse=on_disk, num_workers=2)
    assert epochs(loader, 3) == epochs(loader_of(recordings), 3)
    stats = loader.stats()["reuse"]
    assert stats["found"] > SAMPLES
    for said in (loader.explain(), caplog.text):
        assert "for this run only: AudioFolder cannot say when its samples change" in said


def test_spectra_that_are_complex_are_kept_as_they_are(recordings: Path) -> None:
    chain = [
        T.PadOrCut(1_600),
        T.STFT(128, 64, power=None),
        T.Lambda(np.abs),
        T.SpecAugment(freq_mask=4, time_mask=5),
    ]
    loader = loader_of(recordings, chain, split=2, num_workers=2)
    found = epochs(loader, 4)
    assert loader.stats()["reuse"]["entries"] == SAMPLES
    fresh = loader_of(recordings, chain, split=2)
    fresh.set_epoch(3)
    assert found[3] == epochs(fresh, 1)[0]


def doubled(values: Any) -> Any:
    values *= 2
    return values


def test_a_function_may_change_what_it_is_given(recordings: Path) -> None:
    chain = [*CHAIN[:3], T.Lambda(doubled), CHAIN[3]]
    loader = loader_of(recordings, chain, num_workers=2)
    found = epochs(loader, 4)
    assert loader.stats()["reuse"]["found"] > 0
    fresh = loader_of(recordings, chain)
    fresh.set_epoch(3)
    assert found[3] == epochs(fresh, 1)[0]


def test_the_masks_are_drawn_anew_and_what_is_kept_is_not(recordings: Path) -> None:
    renewal = Renewal(SAMPLES, SAMPLES, 3, 5)
    for split, several in ((4, False), (3, True)):
        seen: dict[tuple[int, int], set[bytes]] = {}
        loader = loader_of(recordings, split=split)
        for epoch in range(6):
            order = loader._epochs.plan(epoch)
            keys = order.keys(np.concatenate([order.positions(batch) for batch in range(order.batches)]))
            samples = [x.numpy().tobytes() for batch, _ in loader for x in batch]
            for key, renewed, sample in zip(
                keys.tolist(), renewal.renewed(keys, epoch).tolist(), samples, strict=True
            ):
                seen.setdefault((key, renewed), set()).add(sample)
        assert (max(map(len, seen.values())) == 3) is several
        assert (max(map(len, seen.values())) == 1) is not several


def test_killed_workers_and_resumes_change_nothing(recordings: Path) -> None:
    expected = epochs(loader_of(recordings), 5)
    loader = loader_of(recordings, num_workers=2)
    for epoch in range(3):
        found = []
        for number, (x, y) in enumerate(loader):
            found.append((x.numpy().tobytes(), tuple(x.shape), x.dtype, y.tolist()))
            if number == 1:
                assert kill_all(loader.stats()["worker_pids"])
        assert found == expected[epoch]
    resumed = loader_of(recordings, num_workers=2)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert epochs(resumed, 2) == expected[3:]


def test_by_itself_it_keeps_spectra_and_says_so(recordings: Path) -> None:
    loader = loader_of(recordings, split="auto")
    assert loader.stats()["reuse"]["split"] == 3
    epochs(loader, 6)
    text = loader.explain()
    assert "AudioFolder: 24 recordings" in text
    assert (
        "all up to LogMel is done for 3 uses (reuse), SpecAugment anew for each; kept 24 of 24 samples so far"
        in text
    )
    found = loader.stats()["reuse"]["diversity"]
    assert (found["samples"], found["uses"]) == (SAMPLES, 6)
    assert f"diversity: {found['measured']:.2f} different draws" in text
    assert found["measured"] > 5.5


def test_measured_diversity_is_what_theorem_1_expects(recordings: Path) -> None:
    """Few outcomes: 16 loudnesses, 16 of them kept; 3 x 16 masks."""
    chain = [T.PadOrCut(20_000), T.Gain((-6, 6)), CHAIN[2], T.Gain((-3, 3))]
    loader = loader_of(recordings, chain, reuse=Reuse(times=3, split=3))
    epochs(loader, 30)
    found = loader.stats()["reuse"]["diversity"]
    assert abs(found["measured"] - found["expected"]) < 5 * found["error"]
    assert found["expected"] < 0.97 * found["uses"]


def test_where_not_all_fit_the_others_are_prepared_anew(recordings: Path) -> None:
    size = 64 + 4 * 16 * 21
    for max_bytes in (45_000, 100_000):
        loader = loader_of(recordings, reuse=Reuse(times=3, split=3, max_bytes=max_bytes))
        room = room_beside(SAMPLES, max_bytes)
        most = min(SAMPLES, int(0.85 * room) // size)
        assert 0 < most - 1 <= loader.stats()["reuse"]["kept"] <= most
        assert len(epochs(loader, 2)[1]) == 5
    assert most == SAMPLES


def test_a_recording_that_is_broken_is_an_error_when_it_is_due(recordings: Path, tmp_path: Path) -> None:
    for at, path in enumerate(sorted(recordings.rglob("*.wav"))):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / path.name).write_bytes(path.read_bytes() if at else b"RIFF????WAVE")
    loader = loader_of(tmp_path)
    with pytest.raises(ValueError, match="cut off"):
        epochs(loader, 1)
    assert len(epochs(loader_of(tmp_path, on_error="skip", num_workers=1), 3)) == 3


class Own(AudioFolder):
    def __getitem__(self, index: int) -> Any:
        return index


def test_what_cannot_be_kept_is_refused(recordings: Path) -> None:
    with pytest.raises(ConfigError, match="Own has a __getitem__ of its own"):
        DataLoader(Own(recordings), reuse=Reuse(times=3))
    with pytest.raises(ConfigError, match=r"what Function .* cannot be kept: a function of yours"):
        loader_of(recordings, [T.Lambda(np.abs), *CHAIN], split=2)


def test_costs_of_every_cut_are_measured(recordings: Path) -> None:
    dataset = AudioFolder(recordings, CHAIN)
    costs = cut_costs(dataset, 4)
    assert len(costs.partial_s) == len(CHAIN) + 1
    assert costs.kept_bytes[3] == 4 * 16 * 21
    assert costs.size[0] == 1
    names = [part.name for part in parts_of(dataset.chain, costs)]
    assert names == ["PadOrCut", "Gain", "LogMel", "SpecAugment", "to tensor"]


def test_the_plan_command_takes_recordings(
    recordings: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    Path("sounds_of_a_test.py").write_text(
        f"from penstock import AudioFolder\nfrom penstock.transforms import *\n"
        f"def dataset():\n    return AudioFolder({str(recordings)!r}, [LogMel({RATE}), SpecAugment()])\n"
    )
    threads = torch.get_num_threads()
    try:
        code = main(["reuse", "plan", "sounds_of_a_test.py:dataset", "--samples", "4", "--figure", "f.svg"])
    finally:
        torch.set_num_threads(threads)
        sys.modules.pop("sounds_of_a_test", None)
    said = capsys.readouterr().out
    assert code == 0
    assert "AudioFolder: 24 samples, 4 measured (1 x" in said
    assert "auto takes split 1 and keeps what is there behind LogMel" in said
    assert "waveform" in said
    assert Path("f.svg").exists()
