"""The trace file: what viewers read and what `penstock.report` draws."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigError, DataLoader
from penstock.measure.counters import Counters
from penstock.measure.trace import KINDS, check_trace, trace_events, write_trace
from penstock.wire.kinds import Kind


def one_batch() -> Counters:
    """Two workers prepare a batch of eight in a second; training waits for it; a worker is lost."""
    counters = Counters(workers=2, trace=True)
    counters.begin(100.0)
    counters.span(0, Kind.SLOTS, 3, 1, 100_500_000_000, 400_000_000, 4)
    counters.span(1, Kind.COLLATE, 3, 1, 101_000_000_000, 250_000_000, 4)
    counters.delivered(100.25, 101.25, 8, 2)
    counters.warned("worker 0 (pid 7) was killed by SIGKILL; it is replaced", 100.75)
    return counters


def test_every_kind_of_task_has_a_name() -> None:
    assert len(KINDS) == len(Kind)
    assert KINDS[Kind.COLLATE] == "collate"


def test_rows_are_named_after_the_training_loop_and_the_workers() -> None:
    names = {e["tid"]: e["args"]["name"] for e in trace_events(one_batch()) if e["name"] == "thread_name"}
    assert names == {0: "training", 1: "worker 0", 2: "worker 1"}


def test_a_task_starts_where_its_end_less_its_duration_is() -> None:
    task = next(e for e in trace_events(one_batch()) if e.get("cat") == "task")
    assert (task["name"], task["ph"], task["tid"]) == ("prepare", "X", 1)
    assert (task["ts"], task["dur"]) == (pytest.approx(100.1e6), pytest.approx(0.4e6))
    assert task["args"] == {"epoch": 1, "batch": 3, "samples": 4}


def test_a_wait_is_on_the_training_row_and_counts_what_was_ready() -> None:
    events = trace_events(one_batch())
    wait = next(e for e in events if e.get("cat") == "wait")
    assert (wait["tid"], wait["ts"], wait["dur"]) == (0, pytest.approx(100.25e6), pytest.approx(1e6))
    assert [e["args"]["ready"] for e in events if e["ph"] == "C"] == [2]


def test_a_lost_worker_is_marked_when_it_was_lost() -> None:
    (fault,) = [e for e in trace_events(one_batch()) if e.get("cat") == "fault"]
    assert fault["ph"] == "i"
    assert fault["ts"] == pytest.approx(100.75e6)
    assert "SIGKILL" in fault["name"]


def test_all_events_carry_the_process(tmp_path: Path) -> None:
    assert {e["pid"] for e in trace_events(one_batch(), 42)} == {42}


def test_without_a_trace_no_waits_are_kept() -> None:
    counters = Counters(workers=1)
    counters.delivered(0.0, 1.0, 8, 0)
    assert not counters.wait_spans


def test_the_file_is_what_perfetto_reads_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_trace(tmp_path / "run.json", one_batch())
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
    trace = json.loads((tmp_path / "run.json").read_text())
    assert trace["displayTimeUnit"] == "ms"
    assert {e["ph"] for e in trace["traceEvents"]} == {"M", "X", "C", "i"}


def test_a_trace_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_trace(path, one_batch())
    before = path.read_text()
    broken = one_batch()
    broken.span(0, 99, 0, 0, 0, 0, 0)
    with pytest.raises(IndexError):
        write_trace(path, broken)
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("missing/run.json", "there is no folder"),
        ("file/run.json", "Not a directory"),
        ("/proc/run.json", "give a place that this user may write to"),
        ("folder", "it is a folder"),
        ("", "it is a folder"),
        (7, "trace must be a path of a file, got 7"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_when_the_loader_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any, why: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=why):
        DataLoader(list(range(4)), trace=path)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match="Permission denied"):
            check_trace(tmp_path / "run.json")
    finally:
        tmp_path.chmod(0o700)


def test_a_path_relative_to_here_or_of_an_old_trace_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_trace("run.json")
    (tmp_path / "run.json").touch()
    check_trace(tmp_path / "run.json")
    check_trace(None)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_trace_that_can_no_longer_be_written_is_said_once_and_never_raised(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    persistent: bool,
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    folder = tmp_path / "traces"
    folder.mkdir()
    loader: DataLoader[Any] = DataLoader(
        list(range(8)),
        2,
        num_workers=workers,
        persistent_workers=persistent and workers > 0,
        trace=folder / "run.json",
    )
    folder.rmdir()
    for _ in range(2):
        assert len(list(loader)) == 4
    next(iter(loader))  # an epoch that is broken off
    del loader
    gc.collect()
    assert [record.levelname for record in caplog.records if "trace" in record.message] == ["WARNING"]
    assert raised == []


def test_a_trace_is_written_again_when_there_is_room_again(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    loader: DataLoader[Any] = DataLoader(list(range(8)), 2, trace=folder / "run.json")
    folder.rmdir()
    list(loader)
    folder.mkdir()
    list(loader)
    assert (folder / "run.json").exists()
