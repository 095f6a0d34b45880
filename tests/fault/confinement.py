"""Less than the usual machine: system calls denied by seccomp, a tiny /dev/shm, a memory cgroup. Linux only.

The first two confine the calling process and all it starts, for good, so they are for programs (`jobs.py`), not for the
process that runs the tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CALLS = {
    "x86_64": {"memfd_create": 319, "pidfd_open": 434},
    "aarch64": {"memfd_create": 279, "pidfd_open": 434},
}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
CLONE_NEWNS, MS_PRIVATE, MS_REC = 0x20000, 1 << 18, 1 << 14


def deny(*names: str) -> None:
    """Have these system calls fail with EPERM from now on, as a container's seccomp profile does."""
    numbers = [CALLS[platform.machine()][name] for name in names]
    steps = [struct.pack("HBBI", LOAD_NUMBER, 0, 0, 0)]
    for at, number in enumerate(numbers):
        steps.append(struct.pack("HBBI", JUMP_IF_EQUAL, len(numbers) - at, 0, number))
    steps += [
        struct.pack("HBBI", RETURN, 0, 0, ALLOW),
        struct.pack("HBBI", RETURN, 0, 0, ERRNO | errno.EPERM),
    ]
    program = ctypes.create_string_buffer(b"".join(steps))
    header = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    checked("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    checked("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(header), 0, 0)


def shrink_shm(size_bytes: int) -> None:
    """A /dev/shm of this size, seen by this process and its children alone."""
    checked("unshare", CLONE_NEWNS)
    checked("mount", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    checked("mount", b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(0), f"size={size_bytes}".encode())


def checked(name: str, *args: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A memory cgroup; a process joins it by writing its pid into `cgroup.procs`. Skips where none can be made."""
    v1 = Path("/sys/fs/cgroup/memory")
    v2 = Path("/sys/fs/cgroup")
    root, limit = (v1, "memory.limit_in_bytes") if v1.is_dir() else (v2, "memory.max")
    folder = root / f"penstock-test-{os.getpid()}"
    try:
        if root is v2:
            (v2 / "cgroup.subtree_control").write_text("+memory")
        folder.mkdir()
        (folder / limit).write_text(str(limit_bytes))
    except OSError as exc:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {exc}")
    with contextlib.suppress(OSError):  # no swap, or none that is accounted for
        (folder / ("memory.swappiness" if root is v1 else "memory.swap.max")).write_text("0")
    try:
        yield folder
    finally:
        folder.rmdir()
