"""What a measurement ran on, and what its processes used.

Everything here is read from the kernel: a figure without its machine cannot be repeated, and a figure from a machine that
others were using must say so.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path

# User, nice, system, irq, softirq, steal: all but idling and waiting for disks.
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
_MIB = 1 << 20


def describe(root: Path) -> dict[str, str | int | float]:
    """The machine, the interpreter and the revision, as they are printed under every table."""
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "revision": _revision(root),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def cores() -> int:
    """CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def busy_cpu_s() -> float:
    """CPU seconds that all cores together have spent on anything, by anyone, since boot."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks: int = os.sysconf("SC_CLK_TCK")
    return sum(int(fields[i]) for i in _BUSY_FIELDS) / ticks


def process_tree(root: int) -> list[int]:
    """`root` and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _parent(entry)
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    tree = [root]
    for pid in tree:
        tree.extend(children.get(pid, ()))
    return tree


def cpu_clocks(pids: list[int]) -> dict[int, float]:
    """CPU seconds of each process, all its threads included, to the nanosecond; those that have ended are left out."""
    clocks = {}
    for pid in pids:
        try:
            clocks[pid] = time.clock_gettime(_cpu_clock_id(pid))
        except OSError:
            continue
    return clocks


def pss_mib(pids: list[int]) -> float:
    """Proportional set size of the processes together: a page shared by n of them counts once, not n times."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total * 1024 / _MIB


def _cpu_clock_id(pid: int) -> int:
    """What `clock_getcpuclockid(3)` returns; Python has no name for it."""
    return (~pid << 3) | 2


def _parent(entry: Path) -> int | None:
    try:
        stat = (entry / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[1])  # the name before it may hold spaces and brackets


def _cpu_model() -> str:
    for command in (["cat", "/proc/cpuinfo"], ["lscpu"]):  # Arm kernels give a name only to lscpu
        try:
            text = _output_of(command)
        except (OSError, subprocess.CalledProcessError):
            continue
        for line in text.splitlines():
            name, _, value = line.partition(":")
            if name.strip().lower() == "model name" and value.strip(" \t-"):
                return value.strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _revision(root: Path) -> str:
    try:
        revision = _output_of(["git", "-C", str(root), "rev-parse", "--short", "HEAD"])
        changes = _output_of(["git", "-C", str(root), "status", "--porcelain", "src"])
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return revision.strip() + (" with changes in src/" if changes.strip() else "")


def _output_of(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
