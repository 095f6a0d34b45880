"""The benchmarks of reuse on a GPU, as far as they go without one: plans, figures, the naive approach, and short trainings on the CPU."""

from __future__ import annotations

import importlib
import itertools
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

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
    """Two classes, 20 images of each to train on and 6 to test with."""
    root = tmp_path_factory.mktemp("cifar")
    for seed, (part, count, kind) in enumerate(itertools.product(("train", "test"), (20,), ("cat", "dog"))):
        written(root / part / kind, count if part == "train" else 6, (32, 32), seed)
    return root


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


def test_what_the_loader_cannot_keep_on_the_device_is_not_planned(module: Any) -> None:
    plan = module("_gpu_plan")

    def planned(*stores: str) -> set[str]:
        return {job.subject for job in plan.reuse_jobs(choice(plan, groups=["lane"], stores=stores))}

    assert planned("memory", "device") - planned("memory") == {"device3", "device3_auto"}


def test_evenness_is_of_the_times_between_batches(module: Any) -> None:
    found = module("_gpu_reuse").evenness([0.0, 1.0, 2.0, 5.0, 6.0])
    assert found["interval_ms"] == 1500.0
    assert found["interval_cv"] == pytest.approx(np.std([1, 1, 3, 1]) / 1.5)
    assert found["interval_p99_to_p50"] == 3.0


def measured(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, subject: str) -> Any:
    data, plan = written(tmp_path / "jpegs", 12, (48, 64), 0), module("_gpu_plan")
    monkeypatch.setattr(module("_prepare_data"), "CACHE", tmp_path / "cache")
    ground = module("_gpu_feeds").Ground(
        device="cpu", data=str(data), generated=0, policy=None, cold=False, samples=48
    )
    job = plan.Job(
        part="reuse", group=group, model="tiny", batch=8, workload="W3", workers=1, subject=subject
    )
    training = module("_gpu_measure").Training("tiny", "cpu")
    chosen = choice(plan, seconds=0.2, warmup=0.1)
    return module("_gpu_reuse").reuse(job, training, ground, chosen)


def test_reference_counts_are_measured_over_whole_rounds_of_epochs(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measured(module, tmp_path, monkeypatch, "table1", "r3_naive")
    assert found["samples"] == 48
    assert found["batches"] % (3 * 6) == 0
    assert found["kept_share"] == 1.0
    assert 0.5 < found["found_share"] < 0.9
    assert found["images_per_s"] > 0
    assert found["interval_cv"] > 0


def test_what_is_kept_on_the_device_is_tried_without_one(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measured(module, tmp_path, monkeypatch, "lane", "device3")
    assert found["kept_share"] == 1.0
    assert found["found_share"] > 0.5
    loop, plan = module("_gpu_reuse"), module("_gpu_plan")
    assert loop.options_of(plan.SUBJECTS["device3"], "cuda") == {"times": 3, "store": "device"}


def test_a_small_cache_has_room_for_its_share_by_the_loaders_own_count(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measured(module, tmp_path, monkeypatch, "small", "small_off")
    assert found["kept_share"] == pytest.approx(0.16, abs=1 / 48)
    assert found["fill_s"] > 0


def test_memory_is_found_out_with_less_where_all_samples_would_fit(module: Any) -> None:
    asked = module("_gpu_reuse").bytes_for
    assert asked(0.16, 1000, lambda given: min(1000, given // 10_000)) == pytest.approx(1_600_000, rel=0.01)
    with pytest.raises(ValueError, match="not one"):
        asked(0.16, 1000, lambda _: 0)


def test_the_table_of_reuse_says_what_standard_and_the_mark_come_to(module: Any) -> None:
    report = module("_gpu_report")
    place = {"part": "reuse", "model": "resnet50", "batch": 256, "repeat": 0}
    rows = [{**place, "group": "", "workload": "", "workers": 0, "subject": "limit", "images_per_s": 4700.0}]
    for subject, speed in (("off", 1000.0), ("r3", 1500.0)):
        rows.append(
            {
                **place,
                "group": "paper",
                "workload": "W3",
                "workers": 4,
                "subject": subject,
                "images_per_s": speed,
            }
        )
    said = report.text(rows)
    assert "1.50" in said
    assert "2,040 images/s" in said


# ---- the naive approach


def test_reference_counts_use_each_kept_sample_as_often_and_renew_all_of_them_together(module: Any) -> None:
    renewal = module("_reuse_naive").ReferenceCounted(20, 14, 3, 7)
    samples = np.arange(20)
    kept = renewal.is_kept(samples)
    for epoch in range(9):
        renewed = renewal.renewed(samples, epoch)
        assert set(renewed[kept].tolist()) == {3 * (epoch // 3)}
        assert set(renewed[~kept].tolist()) == {epoch}
        assert renewal.misses(epoch) == (20 if epoch % 3 == 0 else 6) == np.count_nonzero(renewed == epoch)
    assert renewal.ends(int(samples[kept][0]), 3) == 6


def test_a_plain_shuffle_is_that_of_a_loader_that_keeps_nothing(
    module: Any, cifar: Path, tmp_path: Path
) -> None:
    variants = module("_reuse_variants")
    arrays = module("_cifar_arrays").arrays_of(cifar, tmp_path, limit=None, say=lambda _: None)
    settings = variants.Settings(
        epochs=1, batch=8, lr=0.1, weight_decay=0.0, magnitude=10, padding=3, limit=None
    )

    def order(name: str) -> list[int]:
        loader = variants.loader_of(name, arrays, settings, seed=3, workers=1, device="cpu")
        return loader._epochs.plan(1).keys(np.arange(40)).tolist()  # type: ignore[no-any-return]

    assert order("plain3") == order("standard")
    assert order("r3") != order("standard")


# ---- accuracy


def test_a_folder_and_an_archive_of_it_have_the_same_images(module: Any, cifar: Path, tmp_path: Path) -> None:
    arrays = module("_cifar_arrays")
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        for path in sorted(cifar.rglob("*.jpg")):
            tar.add(path, path.relative_to(cifar).as_posix())
    ways = [arrays.arrays_of(data, tmp_path, limit=None, say=print) for data in (cifar, tmp_path / "all.tar")]
    assert [len(part) for part in ways[0]] == [40, 40, 12, 12]
    for one, other in zip(*ways, strict=True):
        assert sorted(map(bytes, one)) == sorted(map(bytes, other))
    assert [len(part) for part in arrays.arrays_of(cifar, tmp_path, limit=2, say=print)] == [4, 4, 4, 4]


def test_auto_splits_behind_randaugment_and_echoing_keeps_everything(
    module: Any, cifar: Path, tmp_path: Path
) -> None:
    variants = module("_reuse_variants")
    arrays = module("_cifar_arrays").arrays_of(cifar, tmp_path, limit=None, say=lambda _: None)
    settings = variants.Settings(
        epochs=1, batch=8, lr=0.1, weight_decay=0.0, magnitude=10, padding=3, limit=None
    )
    found = {
        name: variants.split_of(variants.loader_of(name, arrays, settings, seed=0, workers=1, device="cpu"))
        for name in ("standard", "r2", "r3", "plain3", "echo3", "simplified")
    }
    assert found == {"standard": None, "r2": 2, "r3": 2, "plain3": 2, "echo3": 4, "simplified": None}


@pytest.mark.parametrize("name", ["resnet18", "vgg16"])
def test_networks_make_ten_numbers_of_an_image(module: Any, name: str) -> None:
    model = module("_cifar_networks").NETWORKS[name]()
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_a_learner_begun_anew_has_the_weights_of_its_seed_and_no_momentum(module: Any) -> None:
    networks = module("_cifar_networks")
    slot = networks.Slot(["tiny"], "cpu", 4, 5e-4, graph=True)
    (learner,) = slot.learners
    generator = torch.Generator().manual_seed(0)
    batch = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=generator), torch.arange(4)

    def after_two_steps(seed: int) -> list[torch.Tensor]:
        learner.begin(seed)
        for _ in range(2):
            slot.learn(*batch, 0.1)
        return [parameter.detach().clone() for parameter in learner.model.parameters()]

    first, other, again = after_two_steps(1), after_two_steps(2), after_two_steps(1)
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))


def accuracy_args(script: Any, cifar: Path, work: Path, *more: str) -> Any:
    given = (
        f"--data {cifar} --work {work} --out {work / 'rows.jsonl'} --networks tiny --variants standard,r3 "
    )
    given += "--seeds 2 --epochs 4 --batch 8 --workers 2 --look-every 2 --device cpu"
    return script.parsed([*given.split(), *more])


def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(
    module: Any, cifar: Path, tmp_path: Path
) -> None:
    script, results = module("reuse_accuracy"), module("_reuse_results")
    whole = accuracy_args(script, cifar, tmp_path / "whole")
    script.Bench(whole).run()

    parts = accuracy_args(script, cifar, tmp_path / "parts", "--stop-after", "12")
    seconds = itertools.count()
    script.Bench(parts, clock=lambda: float(next(seconds))).run()  # each look at the clock is a second later
    assert not parts.out.exists()
    kept = [torch.load(path, weights_only=True)["epoch"] for path in sorted(parts.work.glob("*.pt"))]
    assert len(kept) == 2
    assert 0 < kept[0] == kept[1] < 4

    parts.stop_after = float("inf")
    script.Bench(parts).run()
    assert not list(parts.work.glob("*.pt"))
    settings = script.asdict(script.settings_of(whole))

    def found(args: Any) -> dict[Any, Any]:
        rows = results.read_rows(args.out, settings)
        return {
            results.key_of(row): (row["accuracy"], row["looks"], row["losses"], row["split"]) for row in rows
        }

    assert len(found(whole)) == 4
    assert found(parts) == found(whole)
    assert script.Bench(whole).to_do() == []


def row(network: str, variant: str, seed: int, accuracy: float) -> dict[str, Any]:
    return {
        "network": network,
        "variant": variant,
        "seed": seed,
        "accuracy": accuracy,
        "looks": [[5, accuracy - 10], [10, accuracy]],
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
    ET.fromstring(results.drawn(losing, {"r3": "used 3 times"}))


def test_trainings_with_other_settings_and_torn_lines_do_not_count(module: Any, tmp_path: Path) -> None:
    results, path = module("_reuse_results"), tmp_path / "rows.jsonl"
    for epochs in (30, 40):
        results.append_row(path, {**row("resnet18", "r3", 0, 90.0), "settings": {"epochs": epochs}})
    with path.open("a") as file:
        file.write('{"network": "resn')
    results.append_row(path, {**row("resnet18", "r3", 1, 91.0), "settings": {"epochs": 40}})
    assert [found["seed"] for found in results.read_rows(path, {"epochs": 40})] == [0, 1]
