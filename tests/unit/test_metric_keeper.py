"""What a loader reads and stores of measured rates: never in the way of training."""

from __future__ import annotations

import logging
import pickle
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.client.metric_keeper import MetricKeeper
from penstock.measure import metric_store
from penstock.measure.metric_store import ACTIVE, PASSIVE, MetricStore, Workload
from penstock.policy.course_state import Course, OffloadTerms, Stage
from penstock.policy.course_values import packed, unpacked
from penstock.policy.offload import Metrics, PlanMetrics, RefinedSetting

TERMS = OffloadTerms(most=4)
METRICS = Metrics(
    training=900.0,
    local=300.0,
    preparing_s=0.01,
    plans=(PlanMetrics(name="samples", remote=700.0, handling_s=2e-4, workers=4),),
)


def workload(model: str = "") -> Workload:
    return Workload(
        chain="a", model=model, batch_size=8, dtype="", device="", processor="one", cores=2.0, workers=2
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PENSTOCK_STORED_METRICS", raising=False)
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path))
    return tmp_path


def kept(metrics: Metrics = METRICS) -> MetricKeeper:
    keeper = MetricKeeper()
    keeper.recalled(workload, TERMS)
    keeper.keep(metrics)
    keeper.settle()
    return keeper


@pytest.mark.parametrize(
    "refined", [None, RefinedSetting(plan="samples", share=0.5, workers=3, rate=600.0)], ids=str
)
def test_what_is_kept_begins_the_next_course(refined: RefinedSetting | None) -> None:
    metrics = replace(METRICS, refined=refined)
    assert kept(metrics).trouble == ""
    course = unpacked(MetricKeeper().recalled(workload, TERMS))
    assert (course.stage, course.kept) == (Stage.REFINING, metrics)
    assert course.origin.startswith("stored on 20")
    assert course.origin.endswith(" by an earlier run")


def test_it_says_that_a_profile_has_measured() -> None:
    MetricStore().save(workload("resnet"), METRICS, ACTIVE)
    assert unpacked(MetricKeeper().recalled(workload, TERMS)).origin.endswith(" by penstock profile")


def test_what_is_stored_already_is_not_stored_again() -> None:
    MetricStore().save(workload(), METRICS, ACTIVE)
    assert kept().trouble == ""
    assert [row.how for row in MetricStore().rows()] == [ACTIVE]
    kept(replace(METRICS, local=200.0))
    assert [row.how for row in MetricStore().rows()] == [PASSIVE]


def test_a_locked_file_does_not_hold_up_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_store, "LOCKED_S", 60.0)
    keeper = kept()
    db = sqlite3.connect(folder / "metrics.sqlite")
    db.execute("BEGIN EXCLUSIVE")
    for local in (200.0, 100.0):
        keeper.keep(replace(METRICS, local=local))
        names = [one.name for one in threading.enumerate()]
        assert names.count("penstock metrics") == 1, "it waits, not we"
    db.rollback()
    db.close()
    keeper.settle()
    assert MetricStore().find(workload()) == replace(METRICS, local=200.0)
    keeper.keep(replace(METRICS, local=100.0))
    keeper.settle()
    assert MetricStore().find(workload()) == replace(METRICS, local=100.0)


def test_a_broken_folder_is_neither_an_error_nor_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(folder / "file" / "deeper"))
    assert "not kept between runs" in kept().trouble
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_a_dataset_whose_text_raises_is_measured_each_time() -> None:
    def identify() -> Workload:
        raise ArithmeticError("no repr")

    keeper = MetricKeeper()
    assert keeper.recalled(identify, TERMS) == ""
    keeper.keep(METRICS)
    keeper.settle()
    assert "ArithmeticError: no repr" in keeper.trouble
    assert MetricStore().rows() == []


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    kept()
    monkeypatch.setenv("PENSTOCK_STORED_METRICS", "0")
    assert MetricKeeper().recalled(workload, TERMS) == ""
    kept(replace(METRICS, local=200.0))
    assert MetricStore().find(workload()) == METRICS


def test_metrics_of_no_use_begin_nothing() -> None:
    kept(replace(METRICS, plans=()))
    assert MetricKeeper().recalled(workload, TERMS) == packed(Course())


def test_a_copy_in_another_process_begins_anew() -> None:
    assert pickle.loads(pickle.dumps(kept())).trouble == ""
