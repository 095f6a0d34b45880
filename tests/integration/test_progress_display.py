"""The bar around a loader: all batches come through, and the waiting share is that of this epoch."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch

from penstock import ConfigError, DataLoader, MissingExtra
from penstock.report import progress
from penstock.report.display import waiting


class Numbers(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return index


class Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(7))


@pytest.mark.parametrize("display", ["rich", "tqdm", "text"])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_comes_through_and_the_bar_ends_at_the_total(
    display: str, workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    if display != "text":
        pytest.importorskip(display)
    loader = DataLoader(Numbers(), batch_size=4, num_workers=workers)
    assert torch.cat(list(progress(loader, "epoch 1", display=display))).tolist() == list(range(20))
    shown = "".join(capfd.readouterr())
    assert "epoch 1" in shown
    assert "5/5" in shown
    assert "samples/s, waits " in shown


@pytest.mark.parametrize("display", ["rich", "tqdm"])
def test_a_dataset_without_a_length_has_a_bar_without_a_total(display: str) -> None:
    pytest.importorskip(display)
    assert len(list(progress(DataLoader(Stream(), batch_size=2), display=display))) == 4


def test_breaking_off_closes_the_bar_and_the_loader() -> None:
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1)
    batches = progress(loader)
    next(batches)
    batches.close()  # type: ignore[attr-defined]


def test_the_share_is_that_of_the_time_between() -> None:
    start = {"engine": "workers", "elapsed_s": 10.0, "wait_s": 9.0, "batches": 7, "samples": 28}
    now = {"engine": "workers", "elapsed_s": 14.0, "wait_s": 10.0, "batches": 17, "samples": 4028}
    assert waiting(start, now) == "2.5 batches/s, 1,000 samples/s, waits 25%"
    assert waiting(start, start) == "0.0 batches/s, 0 samples/s, waits 0%"
    assert waiting(start, {**start, "engine": "torch"}) == ""


def test_an_unknown_display_is_refused() -> None:
    with pytest.raises(ConfigError, match="'auto', 'rich', 'tqdm' or 'text'"):
        next(progress(DataLoader(Numbers()), display="gtk"))


def test_without_rich_and_tqdm_there_is_a_line_of_text_unless_one_of_them_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] in ("rich", "tqdm"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert len(list(progress(DataLoader(Numbers(), batch_size=5)))) == 4
    assert capsys.readouterr().err.startswith("4/4 ")
    with pytest.raises(MissingExtra, match="pip install tqdm"):
        next(progress(DataLoader(Numbers()), display="tqdm"))
