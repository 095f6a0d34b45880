"""Facts about the machine and its container: cores, memory limits, why a process was killed. Linux; read-only."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

log = logging.getLogger("penstock")

CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")
DUMP_SIGNAL = getattr(signal, "SIGRTMIN", 0) + 9
"""A worker answers it with its threads' stacks, even while C code holds the interpreter lock."""


@functools.cache
def say_once(text: str) -> None:
    """Log each warning once per process, such as a feature that this machine denies."""
    log.warning("%s", text)


def own_cgroup(controller: str) -> list[Path]:
    """Return the folders of this process's cgroup and its ancestors, innermost first; v2, or v1's `controller`."""
    try:
        lines = OWN_CGROUP.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = CGROUP / controller if controllers else CGROUP
        if (controllers and controller not in controllers.split(",")) or not root.exists():
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        folders = [root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
        if controllers or (CGROUP / "cgroup.controllers").exists():
            return folders
    return []


def read_number(path: Path) -> int | None:
    try:
        text = path.read_text().split()[0]
        return None if text in ("max", "-1") else int(text)
    except (OSError, ValueError, IndexError):
        return None


def memory_limit() -> int:
    """Return the bytes this process may use: the tightest cgroup limit, at most the machine's memory."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *memory_numbers("memory.max", "memory.limit_in_bytes")])


def memory_used() -> int:
    """Return the bytes charged to the innermost cgroup that reports them; 0 if none does."""
    return next(memory_numbers("memory.current", "memory.usage_in_bytes"), 0)


def memory_numbers(*names: str) -> Iterator[int]:
    """In files of these names, of our cgroup and its ancestors, innermost first."""
    for folder in own_cgroup("memory"):
        for name in names:
            found = read_number(folder / name)
            if found is not None:
                yield found


def memory_left() -> int:
    """Return the bytes still available on the machine and in all our cgroups. File cache counts as free."""
    left = 1024 * word_behind(MEMINFO, "MemAvailable:") or memory_limit()
    for folder in own_cgroup("memory"):
        for most, taken in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = read_number(folder / most), read_number(folder / taken)
            if limit is not None and used is not None:
                left = min(left, limit - used + cached_bytes(folder / "memory.stat"))
    return max(0, left)


def cached_bytes(path: Path) -> int:
    """Return a cgroup's file cache; version 1 counts nested groups in separate `total_` fields."""
    kinds = ("inactive_file", "active_file")
    return sum(word_behind(path, f"total_{kind}") or word_behind(path, kind) for kind in kinds)


def word_behind(path: Path, name: str) -> int:
    """Return the number after a name in a file of words; 0 if absent."""
    try:
        words = path.read_text().split()
        return int(words[words.index(name) + 1])
    except (OSError, ValueError, IndexError):
        return 0


def oom_kills() -> int:
    """Return how many processes of this cgroup the kernel has killed for memory."""
    for folder in own_cgroup("memory"):
        for name in ("memory.events", "memory.oom_control"):
            try:
                words = (folder / name).read_text().split()
            except OSError:
                continue
            if "oom_kill" in words:
                return int(words[words.index("oom_kill") + 1])
    return 0


SCARCE_BYTES = 256 << 20


@lru_cache(maxsize=1)
def shm_is_scarce() -> bool:
    """Return whether /dev/shm is missing or likely to fill up (containers often give it 64 MB)."""
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108 - only asked for its size
    except OSError:
        return True
    return found.f_bavail * found.f_frsize < SCARCE_BYTES


def cpu_quota() -> float | None:
    """Return the CPU quota in cores of the tightest cgroup, or None."""
    quotas = []
    for folder in own_cgroup("cpu"):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                quotas.append(int(quota) / int(period))
        except (OSError, ValueError):
            pass
        cfs, cfs_period = read_number(folder / "cpu.cfs_quota_us"), read_number(folder / "cpu.cfs_period_us")
        if cfs and cfs_period and cfs > 0:
            quotas.append(cfs / cfs_period)
    return min(quotas, default=None)


def private_bytes(pid: int) -> int:
    """Return a process's resident bytes without shared memory and files; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def process_state(pid: int) -> str:
    """Return the state letter of /proc/PID/stat: R running, S sleeping, D in the kernel, T stopped, Z dead; ? unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.partition(":")[2], 16) >> (number - 1) & 1)
    return False


class RunDelay:
    """Nanoseconds that this process has waited for a core; 0 if the kernel does not tell."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def read(self) -> int:
        return int(os.pread(self._fd, 64, 0).split()[1]) if self._fd >= 0 else 0


class CoreWaits:
    """Time that another process has waited for a core, an ongoing wait included; 0 if the kernel does not tell. Measures the first thread,
    in which a worker prepares samples."""

    def __init__(self, pid: int) -> None:
        self._pid, self._seen, self._since_s = pid, (0, 0), 0.0
        try:
            self._fd = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def seconds(self, now_s: float) -> float:
        """Return the seconds so far. Call it every few hundredths of a second, or an ongoing wait is overestimated."""
        ran, waited, times = self._read()
        going_on = 0.0
        # The kernel counts a wait only when it ends. A runnable process that has not run since the last look is waiting.
        if (ran, waited) == self._seen and times and process_state(self._pid) == "R":
            going_on = now_s - self._since_s
        else:
            self._seen, self._since_s = (ran, waited), now_s
        return waited / 1e9 + going_on

    def _read(self) -> tuple[int, int, int]:
        if self._fd < 0:
            return 0, 0, 0
        try:
            ran, waited, times = os.pread(self._fd, 64, 0).split()
        except (OSError, ValueError):  # it has ended
            return *self._seen, 0
        return int(ran), int(waited), int(times)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show (15 characters)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name[:15])


USUAL_LINK_BYTES_S = 125e6
"""1 Gbit/s, where the speed is unknown."""


def link_bytes_s() -> float:
    """Return the speed of the interface that other machines are reached by."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/net/route").read_text("ascii").splitlines()[1:]:
            interface, destination = line.split()[:2]
            if destination == "00000000":
                mbit_s = int(Path(f"/sys/class/net/{interface}/speed").read_text("ascii"))
                return mbit_s * 125e3 if mbit_s > 0 else USUAL_LINK_BYTES_S
    return USUAL_LINK_BYTES_S
