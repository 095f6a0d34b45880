"""Which job a process belongs to, where its node listens, and when its services may start again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock import __version__
from penstock.errors import ConfigError
from penstock.node.config import NodeConfig
from penstock.node.job import address, job_name, start_ticks
from penstock.policy.restarts import FIRST_S, MOST_S, SOON_S, early_ends, restart_wait_s

STORE = {"MASTER_ADDR": "node7", "MASTER_PORT": "29500"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "8ad1", **STORE}
SLURM = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"PENSTOCK_GROUP": "mine", **TORCHRUN, **SLURM}, "group mine"),
        ({**TORCHRUN, **SLURM}, "torchrun 8ad1"),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, "torchrun node7:29500"),
        (SLURM, "slurm 17.0"),
        ({"SLURM_JOB_ID": "17"}, "slurm 17."),
        ({"RANK": "1", "WORLD_SIZE": "2", **STORE}, "ranks node7:29500"),
    ],
)
def test_a_job_is_named_by_its_launcher(environ: dict[str, str], name: str) -> None:
    assert job_name(environ) == name


ALONE = {"RANK": "0", "WORLD_SIZE": "1", **STORE}
"""The store may be anyone's: two jobs of one process each must not take it for one job."""


@pytest.mark.parametrize(
    "environ", [{}, STORE, ALONE, {"PENSTOCK_GROUP": ""}], ids=["", "store", "alone", "empty"]
)
def test_without_a_launcher_a_process_is_a_job_of_its_own(environ: dict[str, str]) -> None:
    assert job_name(environ) == f"process {os.getpid()}.{start_ticks()}"


def test_two_runs_without_a_name_are_two_jobs() -> None:
    first = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}
    assert job_name(first) != job_name({**first, "MASTER_PORT": "29501"})


def test_the_start_of_a_process_tells_it_from_an_earlier_one_of_the_same_pid() -> None:
    assert start_ticks().isdecimal()
    script = "from penstock.node.job import start_ticks; print(start_ticks())"
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.run(
        [sys.executable, "-c", script], check=True, env=env, capture_output=True, timeout=60
    )
    assert int(other.stdout) > int(start_ticks())


def test_an_address_tells_users_jobs_and_versions_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {address("a", 0), address("b", 0), address("a", 1)}
    monkeypatch.setattr("penstock.node.job.__version__", f"{__version__}+1")
    known.add(address("a", 0))
    assert len(known) == 4
    assert all(name.startswith("\0penstock-") and len(name) < 100 for name in known)
    assert address("a", 1000).startswith("\0penstock-1000-")


@pytest.mark.parametrize(
    "wrong",
    [
        {"linger_s": -1.0},
        {"open_s": -0.1},
        {"services": {"": "a:b"}},
        {"services": {"x" * 65: "a:b"}},
        {"services": {"x": "a.b"}},
    ],
)
def test_a_config_that_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"must be >= 0|is a short name"):
        NodeConfig(**wrong)  # type: ignore[arg-type]


def test_ends_soon_after_the_start_are_counted_until_one_comes_late() -> None:
    assert early_ends(0, lived_s=0.1) == 1
    assert early_ends(3, lived_s=SOON_S - 0.1) == 4
    assert early_ends(3, lived_s=SOON_S) == 0


def test_the_pause_before_a_start_doubles_up_to_a_limit_and_passes() -> None:
    assert [restart_wait_s(early, since_s=0.0) for early in range(5)] == [
        0.0,
        0.0,
        FIRST_S,
        2 * FIRST_S,
        4 * FIRST_S,
    ]
    assert restart_wait_s(1000, since_s=0.0) == MOST_S
    assert restart_wait_s(2, since_s=0.2) == pytest.approx(FIRST_S - 0.2)
    assert restart_wait_s(2, since_s=FIRST_S) == 0.0
