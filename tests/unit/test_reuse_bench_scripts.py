"""The benchmarks of reuse on a GPU, as far as they go without one: plans, figures, and short trainings on the CPU."""

from __future__ import annotations

import importlib
import itertools
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    threads, tunes = torch.get_num_threads(), torch.backends.cudnn.benchmark
    yield importlib.import_module
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = tunes


def written(folder: Path, count: int, size: tuple[int, int], seed: int) -> Path:
    """A folder of JPEG files."""
    folder.mkdir(parents=True)
    for number, image in enumerate(np.random.default_rng(seed).integers(0, 256, (count, *size, 3), np.uint8)):
        assert cv2.imwrite(str(folder / f"{number:04}.jpg"), image)
    return folder


@pytest.fixture(scope="session")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of two classes, 20 images of each to train on and 6 to test with."""
    root = tmp_path_factory.mktemp("cifar")
    for seed, (part, kind) in enumerate(itertools.product(("train", "test"), ("cat", "dog"))):
        written(root / part / kind, 20 if part == "train" else 6, (32, 32), seed)
    with tarfile.open(root / "all.tar", "w") as tar:
        for path in sorted(root.rglob("*.jpg")):
            tar.add(path, path.relative_to(root).as_posix())
    return root / "all.tar"


# ---- throughput


def choice(plan: Any, **changes: Any) -> Any:
    return plan.Choice(**{"models": [], "workloads": (), "workers": [], **changes})


def test_reuse_is_measured_once_for_each_of_what_is_compared_and_the_limit_once_for_each_model(
    module: Any,
) -> None:
    plan = module("_gpu_plan")
    jobs = plan.reuse_jobs(choice(plan, repeats=2))
    assert len({job.key for job in jobs}) == len(jobs)
    limits = [(job.model, job.batch, job.repeat) for job in jobs if job.subject == "limit"]
    assert limits == [("resnet50", 256, 0), ("resnet18", 512, 0), ("resnet50", 256, 1), ("resnet18", 512, 1)]
    ratios = [
        job.workers for job in jobs if job.group == "workers" and job.subject == "r3" and not job.repeat
    ]
    assert ratios == [2, 3, 4, 5, 6]
    assert {job.workers for job in jobs if job.group == "lane"} == {15}


def measured(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, subject: str) -> Any:
    data, plan = written(tmp_path / "jpegs", 12, (48, 64), 0), module("_gpu_plan")
    monkeypatch.setattr(module("_prepare_data"), "CACHE", tmp_path / "cache")
    ground = module("_gpu_feeds").Ground(device="cpu", data=str(data), generated=0, cold=False, samples=48)
    job = plan.Job(
        part="reuse", group=group, model="tiny", batch=8, workload="W3", workers=1, subject=subject
    )
    training = module("_gpu_measure").Training("tiny", "cpu")
    chosen = choice(plan, seconds=0.2, warmup=0.1)
    return module("_gpu_reuse").reuse(job, training, ground, chosen)


def test_what_is_kept_on_the_device_is_tried_without_one(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measured(module, tmp_path, monkeypatch, "lane", "device3")
    assert found["kept_share"] == 1.0
    assert found["found_share"] > 0.5
    loop, plan = module("_gpu_reuse"), module("_gpu_plan")
    assert loop.options_of(plan.SUBJECTS["device3"], "cuda") == {"times": 3, "store": "device"}


def test_memory_is_for_all_samples_by_the_loaders_own_count(module: Any) -> None:
    loop = module("_gpu_reuse")
    per_sample = 1 << 20
    asked = loop.bytes_for(1000, lambda given: min(1000, given // per_sample))
    assert asked == pytest.approx(loop.TO_SPARE * 1000 * per_sample, rel=0.01)
    with pytest.raises(ValueError, match="not one"):
        loop.bytes_for(1000, lambda _: 0)


def test_the_table_of_reuse_says_what_standard_comes_to(module: Any) -> None:
    place = {"part": "reuse", "model": "resnet50", "batch": 256, "repeat": 0, "workload": "W3"}
    speeds = (("off", 1000.0), ("r3", 1500.0))
    rows = [
        {**place, "group": "paper", "workers": 4, "subject": subject, "images_per_s": speed}
        for subject, speed in speeds
    ]
    assert "1.50" in module("_gpu_report").text(rows)


# ---- accuracy


def test_an_archive_is_decoded_whole_or_a_few_images_of_each_class(module: Any, cifar: Path) -> None:
    arrays = module("_cifar")
    assert [len(part) for part in arrays.arrays_of(cifar, limit=None)] == [40, 40, 12, 12]
    assert [len(part) for part in arrays.arrays_of(cifar, limit=2)] == [4, 4, 4, 4]


def test_auto_splits_behind_randaugment_and_echoing_keeps_everything(module: Any, cifar: Path) -> None:
    variants = module("_reuse_variants")
    arrays = module("_cifar").arrays_of(cifar, limit=None)
    settings = variants.Settings(
        epochs=1, batch=8, lr=0.1, weight_decay=0.0, magnitude=10, padding=3, limit=None
    )
    found = {
        name: variants.split_of(variants.loader_of(name, arrays, settings, seed=0, workers=1, device="cpu"))
        for name in ("standard", "r2", "r3", "echo3", "simplified")
    }
    assert found == {"standard": None, "r2": 2, "r3": 2, "echo3": 4, "simplified": None}


@pytest.mark.parametrize("name", ["resnet18", "vgg16"])
def test_networks_make_ten_numbers_of_an_image(module: Any, name: str) -> None:
    model = module("_cifar_networks").NETWORKS[name]()
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_trainings_are_made_once_and_a_seed_decides_them(module: Any, cifar: Path, tmp_path: Path) -> None:
    script, results = module("reuse_accuracy"), module("_reuse_results")

    def found(name: str) -> dict[Any, Any]:
        given = f"--data {cifar} --out {tmp_path / name} --networks tiny --variants standard,r3 --seeds 2 "
        args = script.parsed(
            [*given.split(), *["--epochs", "2", "--batch", "8", "--workers", "2", "--device", "cpu"]]
        )
        assert len(script.to_do(args)) == 4
        script.run(args)
        assert script.to_do(args) == []
        rows = results.read_rows(args.out, script.asdict(script.settings_of(args)))
        return {results.key_of(row): (row["accuracy"], row["losses"], row["split"]) for row in rows}

    first = found("first.jsonl")
    assert found("second.jsonl") == first
    assert first["tiny", "standard", 0] != first["tiny", "standard", 1]


def row(network: str, variant: str, seed: int, accuracy: float) -> dict[str, Any]:
    return {
        "network": network,
        "variant": variant,
        "seed": seed,
        "accuracy": accuracy,
    }


def test_losses_are_within_seeds_and_an_experiment_without_power_says_so(module: Any) -> None:
    results = module("_reuse_results")
    rows = [row("resnet18", "standard", seed, 92.0 + seed) for seed in range(5)]
    rows += [row("resnet18", "r3", seed, 92.0 + seed - 0.1 * (seed % 2)) for seed in range(4)]
    assert results.losses_of(rows, "resnet18", "r3") == pytest.approx([0.0, 0.1, 0.0, 0.1])
    losing = rows + [row("resnet18", "echo3", seed, 91.0 + seed + 0.1 * (seed % 2)) for seed in range(5)]
    said = results.table(losing, {})
    assert "met: 0.4" in said
    assert "a loss that shows" in said
    as_good = rows + [row("resnet18", "echo3", seed, 92.0 + seed) for seed in range(5)]
    assert "lacks power" in results.table(as_good, {})


def test_trainings_with_other_settings_and_torn_lines_do_not_count(module: Any, tmp_path: Path) -> None:
    results, lines, path = module("_reuse_results"), module("_lines"), tmp_path / "rows.jsonl"
    for epochs in (30, 40):
        lines.append_line(path, {**row("resnet18", "r3", 0, 90.0), "settings": {"epochs": epochs}})
    with path.open("a") as file:
        file.write('{"network": "resn')
    lines.append_line(path, {**row("resnet18", "r3", 1, 91.0), "settings": {"epochs": 40}})
    assert [found["seed"] for found in results.read_rows(path, {"epochs": 40})] == [0, 1]
