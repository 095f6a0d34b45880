"""Which job a training process belongs to, and where that job's node process listens."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from penstock.version import __version__

UNNAMED = "none"
"""torchrun's run id if none was given: then only the address of its store tells two jobs apart."""


def job_name(environ: Mapping[str, str] = os.environ) -> str:
    """Name the job of this training process. An agent is another process: it must be given its training process's name."""
    if group := environ.get("PENSTOCK_GROUP"):
        return f"group {group}"
    if run := environ.get("TORCHELASTIC_RUN_ID"):
        if run == UNNAMED:  # guard: unnamed-runs
            run = f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}"
        return f"torchrun {run}"
    if job := environ.get("SLURM_JOB_ID"):
        return f"slurm {job}.{environ.get('SLURM_STEP_ID', '')}"
    return f"process {os.getpid()}.{start_ticks()}"


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
