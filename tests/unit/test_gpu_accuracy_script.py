"""What `benchmarks/gpu_accuracy.py` computes without a GPU: bounds, pairs, and the images it trains on."""

from __future__ import annotations

import importlib
import io
import json
import math
import tarfile
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("gpu_accuracy")


def run(seed: int, lane: bool, accuracy: float, packed: int = 50) -> dict[str, Any]:
    did = {"samples": 100, "packed": packed if lane else 0, "by_cpu": 0}
    return {"seed": seed, "lane": lane, "accuracy": accuracy, "seconds": 1.0, "lane_did": did}


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
    arguments = ["--data", "x.tar", "--out", str(tmp_path / "found.json"), "--device", "cpu"]
    args = script.options(arguments)

    def settings(**changed: Any) -> Any:
        names = script.Settings.__dataclass_fields__
        return script.Settings(**{name: getattr(args, name) for name in names} | changed)

    kept = {"settings": script.asdict(settings(workers=99)), "runs": [run(0, True, 90.0)]}
    assert script.resumed(args.out, settings()) == []
    args.out.write_text(json.dumps(kept))
    assert script.resumed(args.out, settings()) == kept["runs"]
    with pytest.raises(SystemExit, match="other settings"):
        script.resumed(args.out, settings(epochs=1))


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
    root = script.enlarged(archive, tmp_path, limit=1, say=said.append)
    found = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.jpg"))
    assert found == ["test/dog/0.jpg", "train/cat/0.jpg"]
    with image.open(root / "train/cat/0.jpg") as larger:
        assert larger.size == (128, 128)
    archive.unlink()
    assert said[-1].startswith("2 images")
    assert script.enlarged(archive, tmp_path, limit=1, say=said.append) == root
