"""The parts of the benchmark of reuse that need no time: what is measured, and on which chains."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline.chain import Chain

pytest.importorskip("cv2")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def test_splits_of_three_layers_draw_the_last_one_to_three_anew(module: Any) -> None:
    reuse, workloads = module("reuse"), module("_reuse_workloads")
    args = reuse.parsed(["--workloads", "layers", "--times", "3", "--splits", "4,3,2", "--no-torch"])
    standard, *kept = reuse.subjects(args)
    ops = Chain.of(workloads.chain_of("layers")).ops
    assert standard["times"] == 1
    assert [[op.name for op in ops[int(each["split"]) :]] for each in kept] == [
        ["RandAugment"] * count for count in (1, 2, 3)
    ]


def test_spectra_are_what_is_kept_of_recordings(module: Any) -> None:
    from penstock.config import Reuse
    from penstock.pipeline.audio import AudioChain
    from penstock.reuse.setup import split_of

    chain = AudioChain.of(module("_reuse_workloads").chain_of("audio"))
    split = split_of(Reuse(times=3), chain)
    assert [op.name for op in chain.ops[split:]] == ["SpecAugment"]
