"""What `benchmarks/gpu_accuracy.py` and its parts compute without a GPU: bounds, pairs, differences, and the formula for shared draws."""

from __future__ import annotations

import importlib
import io
import itertools
import json
import math
import tarfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("gpu_accuracy")


@pytest.fixture
def shared_draws(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("_gpu_diversity")


def run(seed: int, lane: bool, accuracy: float, packed: int = 50) -> dict[str, Any]:
    did = {"samples": 100, "packed": packed if lane else 0, "by_cpu": 0, "cannot": ""}
    return {"seed": seed, "lane": lane, "accuracy": accuracy, "seconds": 1.0, "lane_did": did}


# ---- accuracy


def test_the_bound_is_students(script: Any) -> None:
    losses = [0.1, -0.1, 0.2, 0.0, 0.05]
    expected = 0.05 + 2.132 * math.sqrt(0.0125) / math.sqrt(5)
    assert script.upper_bound(losses) == pytest.approx(expected)
    assert script.upper_bound([0.1]) is None
    assert script.upper_bound([0.0, 1.0] * 20) > 0.5


def test_only_complete_pairs_count_and_a_loss_is_positive(script: Any) -> None:
    runs = [
        run(0, True, 90.0),
        run(0, False, 90.5),
        run(1, False, 91.0),
        run(1, True, 91.1),
        run(2, True, 0.0),
    ]
    found = script.summary(runs)
    assert found["seeds"] == [0, 1]
    assert found["losses_points"] == pytest.approx([0.5, -0.1])
    assert found["mean_loss_points"] == pytest.approx(0.2)
    assert found["lane_share"] == 0.5
    assert found["met"] is False


def test_no_goal_is_met_by_a_lane_that_made_nothing(script: Any) -> None:
    found = script.summary([run(seed, lane, 90.0, packed=0) for seed, lane in script.schedule(3)])
    assert found["bound_points"] == 0.0
    assert found["met"] is None
    assert script.summary([])["mean_loss_points"] is None


def test_each_seed_has_a_pair_and_neither_is_always_first(script: Any) -> None:
    assert script.schedule(3) == [(0, True), (0, False), (1, False), (1, True), (2, True), (2, False)]


@pytest.mark.parametrize("steps", [1, 2, 3, 100])
def test_there_is_a_rate_for_each_step_up_and_then_down_to_nothing(script: Any, steps: int) -> None:
    rates = list(script.rates_of(steps, 0.4))
    top = rates.index(max(rates))
    assert len(rates) == steps
    assert rates[top] == 0.4
    assert rates == sorted(rates[: top + 1]) + sorted(rates[top + 1 :], reverse=True)
    assert steps == 1 or rates[-1] == pytest.approx(0.0)


def test_runs_are_kept_for_the_same_settings_only(script: Any, tmp_path: Path) -> None:
    arguments = ["accuracy", "--data", "x.tar", "--out", str(tmp_path / "found.json"), "--device", "cpu"]
    args = script.options(arguments)

    def settings(**changed: Any) -> Any:
        names = script.Settings.__dataclass_fields__
        return script.Settings(**{name: getattr(args, name) for name in names} | changed)

    kept = {"settings": script.asdict(settings(workers=99)), "runs": [run(0, True, 90.0)]}
    script.write(args.out, kept)
    assert json.loads(args.out.read_text()) == kept
    assert script.resumed(args.out, settings(), resume=True) == kept["runs"]
    assert script.resumed(args.out, settings(), resume=False) == []
    with pytest.raises(SystemExit, match="other settings"):
        script.resumed(args.out, settings(epochs=1), resume=True)


def test_the_lane_is_asked_for_where_there_is_a_gpu(script: Any) -> None:
    assert script.lane_mode(0.5, "cpu") == script.lane_mode(None, "cuda") == {"gpu_prep": "off"}
    asked = script.lane_mode(0.25, "cuda")
    assert asked["deterministic"]
    assert asked["gpu_prep"].share == 0.25


def test_images_are_enlarged_once(script: Any, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    archive, file = tmp_path / "images.tar", io.BytesIO()
    image.new("RGB", (32, 32), (200, 30, 40)).save(file, "JPEG")
    names = ["train/cat/0.jpg", "./train/cat/1.jpg", "test/dog/0.jpg", "notes.txt", "train/../../up.jpg"]
    with tarfile.open(archive, "w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(file.getvalue())
            tar.addfile(member, io.BytesIO(file.getvalue()))
    said: list[str] = []
    root = script.enlarged(archive, tmp_path, limit=1, processes=1, say=said.append)
    found = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.jpg"))
    assert found == ["test/dog/0.jpg", "train/cat/0.jpg"]
    with image.open(root / "train/cat/0.jpg") as larger:
        assert larger.size == (128, 128)
    archive.unlink()
    assert said[-1].startswith("2 images")
    assert script.enlarged(archive, tmp_path, limit=1, processes=1, say=said.append) == root


# ---- outputs


def test_differences_are_in_levels_and_of_the_images_that_differ(script: Any) -> None:
    plain = torch.zeros(4, 3, 8, 8)
    other, logits = plain.clone(), torch.arange(12.0).view(4, 3)
    other[2, 0, 0, 0] = 2 / 255 / script.STD[0]
    seen = logits.clone()
    seen[2, 0] += 100.0
    found = script.apart(other, plain, seen, logits)
    assert (found["images"], found["differ"]) == (4, 1)
    assert found["levels_largest"] == pytest.approx(2.0, abs=1e-4)
    assert found["levels_above"] == {
        "0": pytest.approx(1 / 192),
        "1": pytest.approx(1 / 192),
        "4": 0.0,
        "16": 0.0,
    }
    assert found["logits_largest"] == pytest.approx(100.0 / found["logits_std"])
    assert found["same_prediction"] == 0.0
    assert script.apart(plain, plain, logits, logits)["differ"] == 0


def test_a_part_is_spread_over_all(script: Any) -> None:
    assert script.spread(range(10), 4) == [0, 2, 5, 7]
    assert script.spread(range(3), 4) == [0, 1, 2]


# ---- diversity


def variance_by_enumeration(ops: int, epochs: int, samples: int, shared: int) -> float:
    """Over every order in which samples come together, and every draw, of every epoch."""
    groupings = [
        [order.index(i) // shared for i in range(samples)] for order in itertools.permutations(range(samples))
    ]
    draws = list(itertools.product(range(ops), repeat=samples // shared))
    epoch = [[draw[group] for group in groups] for groups in groupings for draw in draws]
    found = [
        sum(len(set(ops_of_one)) for ops_of_one in zip(*several, strict=True))
        for several in itertools.product(epoch, repeat=epochs)
    ]
    return float(np.var(found))


@pytest.mark.parametrize("shared", [1, 3])
def test_the_formula_is_what_enumeration_finds(shared_draws: Any, shared: int) -> None:
    case = shared_draws.Augmented(ops=3, epochs=2, samples=3, shared=shared)
    found = 3 * case.variance_of_one() + 6 * case.covariance()
    assert found == pytest.approx(variance_by_enumeration(3, 2, 3, shared))


def test_the_formula_is_what_enumeration_finds_for_groups(shared_draws: Any) -> None:
    case = shared_draws.Augmented(ops=2, epochs=2, samples=4, shared=2)
    found = 4 * case.variance_of_one() + 12 * case.covariance()
    assert found == pytest.approx(variance_by_enumeration(2, 2, 4, 2))


def test_simulated_trainings_agree_with_the_formula(shared_draws: Any) -> None:
    rng, case = np.random.default_rng(1), shared_draws.Augmented(16, 10, 60, 20)
    alone, error = shared_draws.std_of(shared_draws.Augmented(16, 10, 60).simulated(3000, rng))
    std, another = shared_draws.std_of(case.simulated(3000, rng))
    assert case.ratio() > 1.5
    assert abs(std / alone / case.ratio() - 1) < 4 * math.hypot(error, another)


def test_draws_for_each_sample_have_a_ratio_of_one_and_few_shared_ones_nearly(shared_draws: Any) -> None:
    assert shared_draws.Augmented(16, 90, shared_draws.PAPERS_SAMPLES).ratio() == 1.0
    assert 1.0 < shared_draws.Augmented(16, 2, shared_draws.PAPERS_SAMPLES, 100).ratio() < 1.01
    assert shared_draws.distinct(16, 512, 64) == pytest.approx(16 * (1 - (15 / 16) ** 8))


def test_the_picture_is_xml_with_a_curve_for_each_number_of_epochs(shared_draws: Any) -> None:
    curves = [
        {"policy": name, "epochs": epochs, "ratios": [1.0, 1.001, 1.002]}
        for name, (_, several) in shared_draws.POLICIES.items()
        for epochs in several
    ]
    picture = ET.fromstring(shared_draws.drawn(curves))
    assert len(picture.findall("{http://www.w3.org/2000/svg}path")) == len(curves)
