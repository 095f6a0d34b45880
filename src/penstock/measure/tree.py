"""Memory of a process and its descendants. Linux; read-only."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

PROC = Path("/proc")


def process_tree(root: int) -> list[int]:
    """Return the process and its descendants; those that end meanwhile may be missing."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (parent := parent_of(int(entry.name))) is not None:
            children[parent].append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children[pid])
    return found


def parent_of(pid: int) -> int | None:
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])  # the process name may contain spaces and brackets


def pss_bytes(pids: list[int]) -> int:
    """Sum the proportional set sizes: private memory, and each shared page once."""
    total = 0
    for pid in pids:
        try:
            text = (PROC / str(pid) / "smaps_rollup").read_text()
        except OSError:
            continue  # it has ended, or access is denied
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total * 1024
