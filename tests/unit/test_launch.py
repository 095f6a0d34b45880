"""Ranks on this machine, as launchers say."""

from __future__ import annotations

import pytest

from penstock.measure.launch import local_world, local_world_said, rank_and_world, ranks_sharing, tasks_on

SRUN = {
    "SLURM_JOB_ID": "17",
    "SLURM_LOCALID": "1",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "9",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),1",
}


BATCH_SCRIPT = {"SLURM_JOB_ID": "17", "SLURM_TASKS_PER_NODE": "4", "SLURM_LOCALID": "0", "SLURM_PROCID": "0"}
LIGHTNING = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, None),
        ({"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16"}, 8),
        ({"LOCAL_WORLD_SIZE": ""}, None),
        ({"LOCAL_WORLD_SIZE": "some"}, None),
        ({**SRUN, "SLURM_NODEID": "1"}, 4),
        ({**SRUN, "SLURM_NODEID": "2"}, 1),
        ({**SRUN, "LOCAL_WORLD_SIZE": "2"}, 2),
        ({**SRUN, "SLURM_NODEID": "1", "WORLD_SIZE": "9"}, 4),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}, None),
        ({**SRUN, "WORLD_SIZE": "72"}, None),
        ({**BATCH_SCRIPT}, None),
        ({**BATCH_SCRIPT, **LIGHTNING}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 3),
        ({"MPI_LOCALNRANKS": "2"}, 2),
        (LIGHTNING, 4),
        ({**LIGHTNING, "MASTER_ADDR": "node7"}, None),
        ({"WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "RANK": "0"}, None),
    ],
    ids=[
        "nobody", "torchrun", "empty", "no-number", "srun", "srun-last-node", "torchrun-by-srun", "srun-world-known", "one-task-of-srun",
        "ranks-within-tasks", "batch-script", "lightning-in-a-batch-script", "open-mpi", "mpich", "lightning", "elsewhere", "a-pod",
    ],
)  # fmt: skip
def test_ranks_on_this_machine_are_what_the_launcher_says(environ: dict[str, str], said: int | None) -> None:
    assert local_world_said(environ) == said
    assert local_world(environ) == (said or 1)


@pytest.mark.parametrize(
    ("environ", "cores", "ranks"),
    [
        ({"LOCAL_WORLD_SIZE": "4"}, 16, 4),
        ({**SRUN, "SLURM_NODEID": "0", "SLURM_CPUS_ON_NODE": "16"}, 16, 4),
        ({**SRUN, "SLURM_NODEID": "0", "SLURM_CPUS_ON_NODE": "16"}, 4, 1),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_CPUS_ON_NODE": "64"}, 16, 4),
        ({}, 16, 1),
    ],
    ids=["torchrun", "srun-unbound", "srun-bound", "torchrun-in-a-job", "alone"],
)
def test_ranks_that_slurm_has_bound_share_no_cores(environ: dict[str, str], cores: int, ranks: int) -> None:
    assert ranks_sharing(cores, environ) == ranks


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": "3"}, (0, 1)),
        (SRUN, (5, 9)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
    ],
    ids=["nobody", "torchrun", "half", "srun", "mpich", "open-mpi"],
)
def test_a_rank_is_what_the_launcher_says(environ: dict[str, str], found: tuple[int, int]) -> None:
    assert rank_and_world(environ) == found


@pytest.mark.parametrize(
    ("listed", "nodes"),
    [("4", [4]), ("2,1", [2, 1]), ("4(x2),1,3(x2)", [4, 4, 1, 3, 3])],
)
def test_slurms_list_of_tasks_is_read(listed: str, nodes: list[int]) -> None:
    assert [tasks_on(listed, node) for node in range(len(nodes))] == nodes
    assert tasks_on(listed, len(nodes)) is None


@pytest.mark.parametrize("listed", ["", "4(x2", "four", "4;2"])
def test_what_is_no_list_of_tasks_says_nothing(listed: str) -> None:
    assert tasks_on(listed, 0) is None
