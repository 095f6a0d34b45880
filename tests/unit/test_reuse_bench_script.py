"""The parts of the benchmark of reuse that need no time: what is measured, on which chains, and the picture of it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from penstock.pipeline.chain import Chain

pytest.importorskip("cv2")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def test_the_sweep_draws_the_last_one_to_three_layers_anew(module: Any) -> None:
    reuse, workloads = module("reuse"), module("_reuse_workloads")
    args = reuse.parsed(["--sweep", "--no-torch"])
    standard, *kept = reuse.subjects(args)
    ops = Chain.of(workloads.chain_of("layers")).ops
    assert standard["times"] == 1
    assert [[op.name for op in ops[int(each["split"]) :]] for each in kept] == [
        ["RandAugment"] * count for count in (1, 2, 3)
    ]
    shares = [reuse.diversity_of(ops, int(each["split"]), each["times"]) for each in kept]
    assert shares[0] < shares[1] < shares[2] < 1
    assert shares[0] == pytest.approx(
        14 * (1 - (13 / 14) ** 3) / 3, rel=1e-3
    )  # what is kept never comes twice


def test_spectra_are_what_is_kept_of_recordings(module: Any) -> None:
    from penstock.config import Reuse
    from penstock.engine.reusing import split_of
    from penstock.pipeline.audio import AudioChain

    chain = AudioChain.of(module("_reuse_workloads").chain_of("audio"))
    split = split_of(Reuse(times=3), chain)
    assert [op.name for op in chain.ops[split:]] == ["SpecAugment"]


def test_the_picture_has_a_bar_for_each_split(module: Any) -> None:
    rows: list[dict[str, Any]] = [{"times": 1, "split": "", "images_per_s": 100.0}]
    for split, rate in (("4", 200.0), ("3", 180.0), ("2", 150.0)):
        rows += [
            {"times": 3, "split": split, "images_per_s": rate + at, "ideal": 2.0, "diversity": 0.9}
            for at in (0, 5)
        ]
    picture = ET.fromstring(module("_reuse_plots").sweep_picture(rows))
    said = [each.text for each in picture.iter() if each.tag.endswith("text")]
    assert [text for text in said if text and "drawn anew" in text] == [
        "1 layer drawn anew",
        "2 layers drawn anew",
        "3 layers drawn anew",
    ]
    assert len([each for each in picture.iter() if each.tag.endswith("rect")]) == 4
