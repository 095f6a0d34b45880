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


@pytest.mark.parametrize("display", ["rich", "tqdm"])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_comes_through_and_the_bar_ends_at_the_total(
    display: str, workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(display)
    loader = DataLoader(Numbers(), batch_size=4, num_workers=workers)
    assert torch.cat(list(progress(loader, "epoch 1", display=display))).tolist() == list(range(20))
    shown = "".join(capfd.readouterr())
    assert "epoch 1" in shown
    assert "5/5" in shown
    assert "waits " in shown


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
    start = {"engine": "workers", "elapsed_s": 10.0, "wait_s": 9.0}
    assert waiting(start, {"engine": "workers", "elapsed_s": 14.0, "wait_s": 10.0}) == "waits 25%"
    assert waiting(start, start) == "waits 0%"
    assert waiting(start, {**start, "engine": "torch"}) == ""


def test_an_unknown_display_is_refused() -> None:
    with pytest.raises(ConfigError, match="'auto', 'rich' or 'tqdm'"):
        next(progress(DataLoader(Numbers()), display="gtk"))


def test_without_rich_and_tqdm_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] in ("rich", "tqdm"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install 'penstock\[demo\]'"):
        next(progress(DataLoader(Numbers())))
