"""The machine of a run: versions, cores, memory."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from penstock import __version__
from penstock.measure import host

CARDS = Path("/proc/driver/nvidia/gpus")


def processor() -> str:
    """Return the processor's name, if the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "Hardware") and value.strip():
            return f"{value.strip()} ({platform.machine()})"
    return platform.processor() or platform.machine()


def accelerators() -> list[str]:
    """Return the names of the NVIDIA cards, without starting CUDA."""
    try:
        texts = [file.read_text("utf-8", "replace") for file in sorted(CARDS.glob("*/information"))]
    except OSError:
        return []
    lines = [line.partition(":") for text in texts for line in text.splitlines()]
    return sorted(value.strip() for name, _, value in lines if name.strip() == "Model")


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def environment() -> dict[str, str]:
    """Return the facts for people, by name."""
    quota = host.cpu_quota()
    limited = "" if quota is None else f", limited to {quota:.3g} by the container"
    return {
        "penstock": __version__,
        "torch": installed("torch"),
        "numpy": installed("numpy"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "cores": f"{usable_cores()}{limited}",
        "memory": f"{host.memory_limit() / 2**30:.1f} GiB",
    }
