"""kill -9 of the training process: a second later nothing of it is left, whatever it was doing."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.fault.datasets import counted
from tests.fault.programs import Program, Zygote, until

PHASES = {
    "idle": {},
    "training": {},
    "in_the_middle": {"pause_s": 0.05},
    "stuck_in_c": {},
    "two_loaders": {},
    "starting": {},
}
SHM = Path("/dev/shm")


def assert_nothing_is_left(program: Program, tmp_path: Path, shm: set[str]) -> None:
    assert program.left(within_s=1.0) == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert {name for name in os.listdir(SHM) if "penstock" in name} <= shm


def start(programs: Zygote, phase: str, tmp_path: Path, **options: object) -> tuple[Program, set[str]]:
    (tmp_path / "tmp").mkdir()
    shm = set(os.listdir(SHM))
    if phase == "stuck_in_c":
        options["folder"] = str(tmp_path)
    program = programs.start(
        f"tests.fault.jobs:{phase}", env={"TMPDIR": str(tmp_path / "tmp")}, **{"batch_size": 4, **options}
    )
    assert program.line() == "ready"
    return program, shm


@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize("phase", PHASES)
def test_nothing_is_left_one_second_after_the_training_process_was_killed(
    phase: str, persistent: bool, programs: Zygote, tmp_path: Path
) -> None:
    options = {**PHASES[phase], "num_workers": 2, "persistent_workers": persistent}
    program, shm = start(programs, phase, tmp_path, **options)
    time.sleep(random.Random(phase).random() * 0.1)
    program.signal(signal.SIGKILL)
    assert_nothing_is_left(program, tmp_path, shm)


def test_a_killed_training_process_with_batches_on_a_device_leaves_nothing(
    programs: Zygote, tmp_path: Path
) -> None:
    program, shm = start(programs, "training", tmp_path, num_workers=2, device="cpu")
    program.signal(signal.SIGKILL)
    assert_nothing_is_left(program, tmp_path, shm)


@pytest.mark.parametrize("when_s", [0.1, 1.0])
def test_a_killed_training_process_that_spawned_its_workers_leaves_nothing(
    when_s: float, programs: Zygote, tmp_path: Path
) -> None:
    options = {"num_workers": 1, "multiprocessing_context": "spawn"}
    program, shm = start(programs, "starting", tmp_path, **options)
    time.sleep(when_s)
    program.signal(signal.SIGKILL)
    assert_nothing_is_left(program, tmp_path, shm)


def test_a_worker_that_is_being_imported_is_killed_with_the_training_process(
    programs: Zygote, tmp_path: Path
) -> None:
    options = {"num_workers": 1, "multiprocessing_context": "spawn", "folder": str(tmp_path)}
    program, shm = start(programs, "starting", tmp_path, dataset="long to load", **options)
    until(lambda: counted(tmp_path, "loading"), within_s=20.0, why="no worker began")
    time.sleep(0.5)  # the agent, which starts beside it, knows it
    program.signal(signal.SIGKILL)
    assert_nothing_is_left(program, tmp_path, shm)


def test_a_program_that_ends_in_the_middle_of_an_epoch_leaves_nothing(
    programs: Zygote, tmp_path: Path
) -> None:
    program, shm = start(programs, "training", tmp_path, num_workers=2)
    program.signal(signal.SIGTERM)
    assert_nothing_is_left(program, tmp_path, shm)
