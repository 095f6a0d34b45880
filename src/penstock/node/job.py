"""Which job a training process belongs to, and where that job's node process listens."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from penstock.measure.launch import rank_and_world
from penstock.version import __version__

UNNAMED = "none"
"""torchrun's run id if none was given: then only the address of its store tells two jobs apart."""
LONE = "process"
"""Begins the name of a job that no other process can find."""


def job_name(environ: Mapping[str, str] = os.environ) -> str:
    """Name the job of this training process. An agent is another process: it must be given its training process's name."""
    if group := environ.get("PENSTOCK_GROUP"):
        return f"group {group}"
    if run := environ.get("TORCHELASTIC_RUN_ID"):
        if run == UNNAMED:  # guard: unnamed-runs
            run = store_of(environ)
        return f"torchrun {run}"
    if job := environ.get("SLURM_JOB_ID"):
        return f"slurm {job}.{environ.get('SLURM_STEP_ID', '')}"
    if rank_and_world(environ)[1] > 1 and environ.get("MASTER_PORT"):
        return f"ranks {store_of(environ)}"
    return f"{LONE} {os.getpid()}.{start_ticks()}"


def is_shared(job: str) -> bool:
    """Whether other processes may find a job of this name."""
    return not job.startswith(LONE)


def store_of(environ: Mapping[str, str]) -> str:
    """Return where the ranks of a job meet."""
    return f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}"


def start_ticks() -> str:
    """Return when this process started, in clock ticks since boot: a reused pid is another job."""
    try:
        return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def address(job: str, uid: int) -> str:
    """Return the abstract socket of a job's node. It has no name in the file system and goes with its process."""
    facts = f"{job}\0{__version__}\0{platform.python_version()}"
    return f"\0penstock-{uid}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"
