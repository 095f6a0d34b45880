"""What a test leaves behind: processes, threads, file descriptors, names in /dev/shm.

Rule 1: only this test process is judged. Other test processes run beside it (pytest-xdist) and other people use the machine,
        so nothing is compared by machine-wide counts.
Rule 2: a process whose parent was killed is still ours, although it is no longer our child. Each test process therefore brands
        itself with a soft resource limit that nobody uses; descendants inherit it through fork and exec, whoever adopts them.
Rule 3: things may take `PATIENCE_S` to go away; what is still there then is a leak.
Rule 4: helpers that the interpreter starts once and keeps by design (resource tracker, fork server) are not leaks.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import psutil

PATIENCE_S = 2.0
SHM = Path("/dev/shm")
NOT_OURS = ("torch_", "sem.mp-")
"""Names of torch's own loader, which leaves them behind when its workers are killed; our loader makes none."""
KEPT_BY_DESIGN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
GONE = (psutil.NoSuchProcess, psutil.AccessDenied, OSError)


def brand_this_process() -> None:
    """Mark this process and all it will start (Rule 2). Where limits are not to be had, only children are seen."""
    with contextlib.suppress(AttributeError, ValueError, *GONE):
        me = psutil.Process()
        _, hard = me.rlimit(psutil.RLIMIT_MSGQUEUE)
        top = 819_200 if hard == psutil.RLIM_INFINITY else hard
        me.rlimit(psutil.RLIMIT_MSGQUEUE, (top - 1 - me.pid % (top // 2), hard))


def _brand(process: psutil.Process) -> int | None:
    with contextlib.suppress(AttributeError, *GONE):
        return int(process.rlimit(psutil.RLIMIT_MSGQUEUE)[0])
    return None


def _is_branded() -> bool:
    """False in a process that never branded itself: then its limit says nothing about descent."""
    me = psutil.Process()
    return _brand(me) not in (None, _brand(me.parent() or me))


def descendants() -> dict[int, psutil.Process]:
    """Processes that this one started, directly or not, dead children that nobody waited for included."""
    me = psutil.Process()
    found = {child.pid: child for child in me.children(recursive=True)}
    if _is_branded():
        mine = _brand(me)
        for process in psutil.process_iter():
            with contextlib.suppress(*GONE):
                branded = _brand(process) == mine and process.create_time() > me.create_time()
                if (
                    branded and process.status() != psutil.STATUS_ZOMBIE
                ):  # a dead orphan is its adopter's to reap
                    found.setdefault(process.pid, process)
    return {pid: process for pid, process in found.items() if not _kept_by_design(process)}


def _kept_by_design(process: psutil.Process) -> bool:
    return any(name in _command(process) for name in KEPT_BY_DESIGN)


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(*GONE):  # gone, or a zombie, which has no command line any more
        return " ".join(process.cmdline())
    return ""


def _descriptors() -> dict[int, str]:
    """Open descriptors of this process and what they refer to."""
    kept = {
        getattr(resource_tracker._resource_tracker, "_fd", None),
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
    }
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of this very listing
            target = os.readlink(f"/proc/self/fd/{name}")
            if int(name) not in kept and not target.startswith("/dev/nvidia"):
                found[int(name)] = target
    return found


def _shm_names() -> set[str]:
    with contextlib.suppress(OSError):
        return {name for name in os.listdir(SHM) if not name.startswith(NOT_OURS)}
    return set()


def _held_by_others(name: str) -> bool:
    """True when a process that is not ours has this file of /dev/shm open or mapped: then it is theirs to remove.

    Asked by inode, since a named semaphore is mapped under the temporary name it was made with.
    """
    ours = {os.getpid(), *descendants()}
    with contextlib.suppress(OSError):
        inode = (SHM / name).stat().st_ino
        return any(inode in shm_inodes(pid) for pid in psutil.pids() if pid not in ours)
    return True  # it went away while we looked


def shm_inodes(pid: int) -> set[int]:
    """Files of /dev/shm that a process has mapped or open, deleted names included."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            fields = line.split(maxsplit=5)  # range, permissions, offset, device, inode, path
            if fields[-1].startswith(f"{SHM}/"):
                found.add(int(fields[4]))
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(link).startswith(f"{SHM}/"):
                    found.add(link.stat().st_ino)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What this process had at one moment."""

    pids: frozenset[int]
    threads: frozenset[threading.Thread]
    descriptors: dict[int, str]
    shm: frozenset[str]

    @classmethod
    def take(cls) -> Snapshot:
        return cls(
            pids=frozenset(descendants()),
            threads=frozenset(threading.enumerate()),
            descriptors=_descriptors(),
            shm=frozenset(_shm_names()),
        )

    def leaks(self, *, patience_s: float = PATIENCE_S) -> list[str]:
        """One line for each thing that is new since then and does not go away; waits only while there is one."""
        deadline = time.monotonic() + patience_s
        pause_s = 0.005
        while True:
            found = list(self._new())
            if not found or time.monotonic() >= deadline:
                return found
            gc.collect()  # takes a third of a second with a trainer imported, so only when there is a reason
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.1)

    def _new(self) -> Iterator[str]:
        for pid, process in descendants().items():
            if pid not in self.pids:
                with contextlib.suppress(*GONE):
                    yield f"process {pid} ({process.status()}): {_command(process) or process.name()}"
        for thread in set(threading.enumerate()) - self.threads:
            yield f"thread {thread.name!r} (daemon={thread.daemon})"
        for fd, target in _descriptors().items():
            if self.descriptors.get(fd) != target:
                yield f"descriptor {fd} -> {target}"
        for name in sorted(_shm_names() - self.shm):
            if not _held_by_others(name):
                yield f"shared memory {SHM / name}"

    def kill_new_processes(self) -> None:
        """End what a test left, so that the next test is judged by itself."""
        left = [process for pid, process in descendants().items() if pid not in self.pids]
        for process in left:
            with contextlib.suppress(*GONE):
                process.kill()
        with contextlib.suppress(*GONE):
            psutil.wait_procs(left, timeout=PATIENCE_S)
