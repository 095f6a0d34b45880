"""How many training processes a job has, and how many of them are on this machine. Each launcher says it in its own words.

Known are torchrun, Accelerate and Ray Train (`LOCAL_WORLD_SIZE`), Open MPI, MPICH and Intel MPI, srun, and whoever sets `WORLD_SIZE` for ranks that meet
on this machine, as Lightning does. Processes that a script starts by itself have a process group at least.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
RANKS_AND_WORLDS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def local_world(environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of training processes on this machine; 1 if nobody says."""
    return local_world_said(environ) or 1


def local_world_said(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of training processes on this machine; None if nobody says."""
    for name in LOCAL_SIZES:
        if said := number(environ, name):
            return said
    if "SLURM_LOCALID" in environ:  # of a task that srun has started; a batch script has none
        return tasks_on(environ.get("SLURM_STEP_TASKS_PER_NODE", ""), number(environ, "SLURM_NODEID") or 0)
    if environ.get("MASTER_ADDR") in LOOPBACK:
        return number(environ, "WORLD_SIZE")
    return None


def ranks_sharing(cores: int, environ: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks of this machine share so many cores of theirs; 1 if SLURM has given each its own."""
    here, given = local_world(environ), number(environ, "SLURM_CPUS_ON_NODE")
    return 1 if given and cores * here <= given else here


def rank_and_world(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return this process's rank and the number of ranks; (0, 1) if nobody says."""
    dist = sys.modules.get("torch.distributed")  # this module is used where torch is not imported
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    for rank_name, world_name in RANKS_AND_WORLDS:
        rank, world = number(environ, rank_name), number(environ, world_name)
        if rank is not None and world:
            return rank, world
    return 0, 1


def number(environ: Mapping[str, str], name: str) -> int | None:
    said = environ.get(name, "")
    return int(said) if said.isdecimal() else None


def tasks_on(tasks_per_node: str, node: int) -> int | None:
    """Read SLURM's list of tasks per node: "4(x2),1" are two nodes with four, then one with one."""
    for part in tasks_per_node.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            return None
        node -= int(found[2] or 1)
        if node < 0:
            return int(found[1])
    return None
