"""The store of measured rates: found again, by several processes, and never in the way of a training."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.measure import metric_store
from penstock.measure.metric_store import (
    ACTIVE,
    LASTS_S,
    MOST_ROWS,
    PASSIVE,
    SCHEME,
    MetricStore,
    Workload,
    cache_folder,
    stored,
)
from penstock.policy.offload import Metrics, PlanMetrics

WORKLOAD = Workload(
    chain="Photos 12, chain 1f",
    model="resnet18",
    batch_size=64,
    dtype="float32",
    device="some card",
    processor="some processor",
    cores=4.0,
    workers=4,
    remote_workers=8,
    plans=("samples", "bytes"),
    link="cluster:6379",
)
METRICS = Metrics(
    training=900.0,
    local=300.5,
    preparing_s=0.013,
    plans=(PlanMetrics(name="samples", remote=700.0, handling_s=2e-4),),
)


@pytest.fixture(autouse=True)
def _first_warnings() -> None:
    metric_store.warnings_about.cache_clear()


def test_metrics_are_found_again(tmp_path: Path) -> None:
    store = MetricStore(tmp_path / "made" / "here")
    assert store.find(WORKLOAD) is None
    assert store.save(WORKLOAD, METRICS, ACTIVE)
    assert store.find(WORKLOAD) == METRICS
    assert store.find(replace(WORKLOAD, workers=5)) is None
    (row,) = store.rows()
    assert (row.how, row.metrics, row.workload["model"]) == (ACTIVE, METRICS, "resnet18")


def test_a_newer_profile_replaces_an_older_one(tmp_path: Path) -> None:
    store = MetricStore(tmp_path)
    store.save(WORKLOAD, METRICS, ACTIVE)
    store.save(WORKLOAD, replace(METRICS, local=1.0), PASSIVE)
    assert [(row.how, row.metrics.local) for row in store.rows() if row.metrics] == [(PASSIVE, 1.0)]


def test_who_does_not_know_the_model_gets_the_newest_of_any(tmp_path: Path) -> None:
    now = [1000.0]
    store = MetricStore(tmp_path, clock=lambda: now[0])
    for model, training in (("a", 1.0), ("b", 2.0)):
        now[0] += 1
        store.save(replace(WORKLOAD, model=model), replace(METRICS, training=training), ACTIVE)
    found = store.find(replace(WORKLOAD, model=""))
    assert found is not None
    assert found.training == 2.0
    assert store.find(replace(WORKLOAD, model="c")) is None


def test_rows_go_when_they_are_old_or_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_store, "MOST_ROWS", 5)
    now = [1000.0]
    store = MetricStore(tmp_path, clock=lambda: now[0])
    for workers in range(8):
        now[0] += 1
        store.save(replace(WORKLOAD, workers=workers), METRICS, PASSIVE)
    assert [row.workload["workers"] for row in store.rows()] == [7, 6, 5, 4, 3]
    now[0] += LASTS_S - 2
    assert store.find(replace(WORKLOAD, workers=4)) is None
    store.save(replace(WORKLOAD, workers=9), METRICS, PASSIVE)
    assert [row.workload["workers"] for row in store.rows()] == [9, 7, 6]
    assert MOST_ROWS > 5


def test_rows_are_forgotten_by_the_first_letters_of_their_key(tmp_path: Path) -> None:
    store = MetricStore(tmp_path)
    assert store.forget() == 0
    assert not store.path.exists()
    store.save(WORKLOAD, METRICS, ACTIVE)
    store.save(replace(WORKLOAD, workers=1), METRICS, ACTIVE)
    assert store.forget(WORKLOAD.key[:8]) == 1
    assert [row.workload["workers"] for row in store.rows()] == [1]
    assert store.forget() == 1
    assert store.rows() == []


@pytest.mark.parametrize("damage", ["garbage", "cut", "empty", "tail of noise", "a folder"])
@pytest.mark.parametrize("first", ["find", "save", "rows", "forget"])
def test_a_damaged_file_is_set_aside_with_one_warning(
    tmp_path: Path, damage: str, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MetricStore(tmp_path)
    store.save(WORKLOAD, METRICS, ACTIVE)
    data = store.path.read_bytes()
    store.path.unlink()
    if damage == "a folder":
        store.path.mkdir()
    else:
        changed = {"garbage": b"x" * 5000, "cut": data[:5000], "empty": b""}
        store.path.write_bytes(changed.get(damage, data[:4096] + b"\xa5" * (len(data) - 4096)))
    if first == "save":
        store.save(WORKLOAD, METRICS, ACTIVE)
    elif first == "find":
        store.find(WORKLOAD)
    else:
        getattr(store, first)()
    for _ in range(3):
        works = store.save(WORKLOAD, METRICS, ACTIVE)
    assert works == (damage != "a folder")
    assert store.find(WORKLOAD) == (METRICS if works else None)
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) <= 1


def test_rows_that_make_no_sense_are_no_metrics(tmp_path: Path) -> None:
    store = MetricStore(tmp_path)
    store.save(WORKLOAD, METRICS, ACTIVE)
    plain = {"training": 1.0, "local": 1.0, "preparing_s": 1.0, "plans": []}
    for value in (
        "",
        "[]",
        "{}",
        "nonsense",
        {**plain, "local": -1.0},
        {**plain, "more": 1},
        {**plain, "plans": 3},
    ):
        text = value if isinstance(value, str) else json.dumps(value)
        with sqlite3.connect(store.path) as db:
            db.execute("UPDATE metrics SET value = ?", (text,))
        db.close()
        assert store.find(WORKLOAD) is None
        assert store.rows()[0].metrics is None


def test_rows_of_another_scheme_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MetricStore(tmp_path)
    with monkeypatch.context() as newer:
        newer.setattr(metric_store, "SCHEME", SCHEME + 1)
        store.save(WORKLOAD, METRICS, ACTIVE)
    assert store.find(WORKLOAD) is None
    assert store.save(WORKLOAD, METRICS, ACTIVE)
    assert sorted(row.metrics is None for row in store.rows()) == [False, True]


def test_tables_of_another_scheme_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MetricStore(tmp_path)
    with sqlite3.connect(store.path) as db:
        db.execute("CREATE TABLE metrics (other TEXT)")
        db.execute("INSERT INTO metrics VALUES ('theirs')")
    db.close()
    assert store.find(WORKLOAD) is None
    assert not store.save(WORKLOAD, METRICS, ACTIVE)
    assert store.rows() == []
    with sqlite3.connect(store.path) as db:
        assert db.execute("SELECT * FROM metrics").fetchall() == [("theirs",)]
    db.close()
    assert len(caplog.records) - sum(one.levelno < logging.WARNING for one in caplog.records) == 1


def test_a_locked_file_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metric_store, "LOCKED_S", 0.05)
    store = MetricStore(tmp_path)
    store.save(WORKLOAD, METRICS, ACTIVE)
    db = sqlite3.connect(store.path)
    db.execute("BEGIN EXCLUSIVE")
    assert store.find(WORKLOAD) is None
    assert not store.save(WORKLOAD, METRICS, ACTIVE)
    db.rollback()
    db.close()
    assert store.find(WORKLOAD) == METRICS
    assert [one.levelname for one in caplog.records if one.levelno >= logging.WARNING] == ["WARNING"]


FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from unit.test_metric_store import METRICS, WORKLOAD
from penstock.measure.metric_store import MetricStore
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = MetricStore(Path({folder!r}))
print(store.save(WORKLOAD, METRICS, "active"), store.find(WORKLOAD))
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, timeout=60
    )


def test_a_full_disk_is_no_error(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[1])
    done = python(FULL_DISK.format(tests=tests, folder=str(tmp_path)))
    assert done.stdout == "False None\n"
    assert done.stderr.count("\n") == 1
    assert "not kept between runs" in done.stderr


@pytest.mark.parametrize("place", ["/proc/nothing/here", "a file's name"])
def test_a_folder_that_cannot_be_made_is_no_error(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a file's name").write_text("")
    store = MetricStore(tmp_path / place / "deeper")
    for _ in range(3):
        assert not store.save(WORKLOAD, METRICS, ACTIVE)
        assert store.find(WORKLOAD) is None
        assert store.forget() == 0
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 1


READ_ONLY = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from unit.test_metric_store import METRICS, WORKLOAD
from penstock.measure.metric_store import MetricStore
store = MetricStore(Path({folder!r}))
store.save(WORKLOAD, METRICS, "active")
os.chmod(store.path, 0o444)
os.chmod(store.path.parent, 0o555)
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
print(store.find(WORKLOAD) == METRICS, store.save(WORKLOAD, METRICS, "active"))
"""


def test_a_read_only_folder_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    for parent in (tmp_path, *list(tmp_path.parents)[:3]):
        if parent.stat().st_uid == os.getuid():
            parent.chmod(parent.stat().st_mode | 0o555)
    done = python(READ_ONLY.format(tests=str(Path(__file__).parents[1]), folder=str(folder)))
    folder.chmod(0o755)
    assert done.stdout == "True False\n"
    assert done.stderr.count("\n") == 1


MANY = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {tests!r})
from unit.test_metric_store import METRICS, WORKLOAD
from penstock.measure import metric_store
metric_store.LOCKED_S = 30.0
store = metric_store.MetricStore(Path({folder!r}))
sys.stdin.readline()
for number in range(10):
    assert store.save(replace(WORKLOAD, workers={rank} * 100 + number), METRICS, "active")
    assert store.find(replace(WORKLOAD, workers={rank} * 100 + number)) == METRICS
"""


@pytest.mark.parametrize("damaged", [False, True])
def test_several_processes_save_at_once(tmp_path: Path, damaged: bool) -> None:
    if damaged:
        MetricStore(tmp_path).path.write_bytes(b"not a database" * 500)
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    each = [
        subprocess.Popen(
            [sys.executable, "-c", MANY.format(tests=tests, folder=str(tmp_path), rank=rank)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        for rank in range(4)
    ]
    for process in each:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[1] for process in each]
    assert [process.returncode for process in each] == [0] * 4, said
    assert len(MetricStore(tmp_path).rows()) == 40


def test_the_folder_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache" / "penstock"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "penstock"
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    assert stored(WORKLOAD) is None
    assert metric_store.save(WORKLOAD, METRICS, ACTIVE)
    assert stored(WORKLOAD) == METRICS
    assert (tmp_path / "own" / "metrics.sqlite").exists()


def test_a_file_that_another_process_has_begun_anew_stays(tmp_path: Path) -> None:
    store = MetricStore(tmp_path)
    store.save(WORKLOAD, METRICS, ACTIVE)
    store._begin_anew(sqlite3.DatabaseError("as it was a moment ago"))
    assert store.find(WORKLOAD) == METRICS
