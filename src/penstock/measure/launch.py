"""How many training processes a job has, and how many of them are on this machine. Each launcher says it in its own words.

Known are torchrun, Accelerate and Ray Train (`LOCAL_WORLD_SIZE`), Open MPI, MPICH and Intel MPI, srun, and whoever sets `WORLD_SIZE` for ranks that meet
on this machine, as Lightning does. Processes that a script starts by itself have a process group at least.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

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
    if said := tasks_here(environ):
        return said
    if environ.get("MASTER_ADDR") in LOOPBACK and "LOCAL_RANK" in environ:  # else a pod's own name for itself
        return number(environ, "WORLD_SIZE")
    return None


def tasks_here(environ: Mapping[str, str]) -> int | None:
    """Return how many ranks srun has started on this machine; None if it has not started the ranks."""
    tasks, world = number(environ, "SLURM_STEP_NUM_TASKS"), known_world(environ)
    if tasks is None or tasks == 1 or world not in (None, tasks):
        return None  # a batch script, or one task that starts ranks itself
    return tasks_on(environ.get("SLURM_STEP_TASKS_PER_NODE", ""), number(environ, "SLURM_NODEID") or 0)


def ranks_sharing(cores: int, environ: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks of this machine share so many cores of theirs; 1 if srun has given each its own."""
    here, given = local_world(environ), number(environ, "SLURM_CPUS_ON_NODE")
    by_srun = not any(number(environ, name) for name in LOCAL_SIZES) and tasks_here(environ)
    return 1 if by_srun and given and cores * here <= given else here


def rank_and_world(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return this process's rank and the number of ranks; (0, 1) if nobody says."""
    group = process_group()
    if group is not None:
        return group.get_rank(), group.get_world_size()
    for rank_name, world_name in RANKS_AND_WORLDS:
        rank, world = number(environ, rank_name), number(environ, world_name)
        if rank is not None and world:
            return rank, world
    return 0, 1


def known_world(environ: Mapping[str, str]) -> int | None:
    """Return the number of ranks as training itself says it, not its launcher; None if it does not yet."""
    group = process_group()
    return number(environ, "WORLD_SIZE") if group is None else group.get_world_size()


def process_group() -> Any:
    """Return torch.distributed if there is a process group. This module is used where torch is not imported."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


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
