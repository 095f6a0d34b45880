"""All file-system calls of the disk store, in one thin object that tests can record and make fail.

Rule 1: no other code of the store opens, writes, renames or removes a file.
Rule 2: folders are 0700, files 0600, and symbolic links are never followed.
Rule 3: waiting for a kernel lock has a deadline: its holder may be stopped, and the waiter has an epoch to finish.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

LOCK_WAIT_S = 5.0
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
BOOT = Path("/proc/sys/kernel/random/boot_id")


class LockHeldError(TimeoutError):
    """Another process holds a lock of the store and does not release it: it may be stopped; the disk is fine."""


class Files:
    """Plain system calls. Thread-safe; stateless."""

    def boot(self) -> bytes:
        """Return 16 bytes that change at a reboot: unsynced writes may then be lost."""
        try:
            return bytes.fromhex(BOOT.read_text().strip().replace("-", ""))[:16].ljust(16, b"\0")
        except (OSError, ValueError):
            return bytes(16)

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NOFOLLOW, 0o600)  # guard: no-links

    def close(self, fd: int) -> None:
        os.close(fd)

    def read(self, fd: int, nbytes: int, offset: int) -> bytes:
        """Read `nbytes`; fewer only at the end of the file."""
        data = os.pread(fd, nbytes, offset)
        while len(data) < nbytes:
            more = os.pread(fd, nbytes - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_into(self, fd: int, memory: memoryview, offset: int) -> int:
        """Fill `memory` and return the byte count; fewer only at the end of the file."""
        done = 0
        while done < len(memory):
            more = os.preadv(fd, [memory[done:]], offset + done)
            if not more:
                break
            done += more
        return done

    def will_jump(self, fd: int) -> None:
        """Turn off kernel read-ahead: access is random."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def will_need(self, fd: int, offset: int, nbytes: int) -> None:
        """Start reading exactly this range in the background."""
        try:  # `contextlib.suppress` would take longer than the call
            os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_WILLNEED)
        except OSError:
            return

    def write(self, fd: int, pieces: Sequence[bytes | memoryview], offset: int) -> None:
        """Write all pieces, one after another."""
        left = [memoryview(piece) for piece in pieces if len(piece)]
        while left:
            done = os.pwritev(fd, left[:512], offset)
            if not done:
                raise OSError(errno.EIO, "nothing was written")
            offset += done
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if done:
                left[0] = left[0][done:]

    def reserve(self, fd: int, start: int, nbytes: int) -> None:
        """Allocate the space now, or raise: a full disk must not first show as SIGBUS in a mapping."""
        os.posix_fallocate(fd, start, nbytes)

    def cut(self, fd: int, nbytes: int) -> None:
        os.ftruncate(fd, nbytes)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)  # noqa: PTH104 - paths are text here, thousands of times a second

    def unlink(self, path: str) -> None:
        os.unlink(path)  # noqa: PTH108

    def make_folder(self, path: str) -> bool:
        """Make a folder; return whether it is new."""
        try:
            os.mkdir(path, 0o700)  # noqa: PTH102
        except FileExistsError:
            return False
        return True

    def remove_folder(self, path: str) -> None:
        os.rmdir(path)  # noqa: PTH106

    def sync_folder(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def names(self, path: str) -> list[str]:
        """List a folder; empty if there is none."""
        try:
            return os.listdir(path)  # noqa: PTH208
        except OSError:
            return []

    def size(self, path: str) -> int:
        """Return the size of a file; 0 if there is none."""
        try:
            return os.lstat(path).st_size
        except OSError:
            return 0


@contextmanager
def own_folder(path: str) -> Iterator[str | None]:
    """Yield a name that leads to this folder alone, whatever happens to its path. None if there is no folder, or it is a link or another user's:
    those are not ours to read or remove."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)  # guard: no-links-removed
    except OSError:
        yield None
        return
    try:
        yield f"/proc/self/fd/{fd}" if os.fstat(fd).st_uid == os.geteuid() else None
    finally:
        os.close(fd)


def size_of(fd: int) -> int:
    return os.fstat(fd).st_size


def is_plain(fd: int) -> bool:
    """Return whether it is a regular file."""
    return stat.S_ISREG(os.fstat(fd).st_mode)


def is_gone(fd: int) -> bool:
    """Return whether an open file has no name left."""
    return os.fstat(fd).st_nlink == 0


def is_at(fd: int, path: str) -> bool:
    """Return whether the path still leads to the open file."""
    try:
        named, mine = os.lstat(path), os.fstat(fd)
    except OSError:
        return False
    return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Take or change the kernel lock of an open file, without waiting. It ends with its holder."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)


def close_locked(files: Files, fd: int) -> None:
    """Unlock and close a file. Unlock first: a child forked meanwhile shares the descriptor and would retain the lock."""
    unlock(fd)  # guard: unlock-first
    files.close(fd)


def wait_lock(fd: int, *, shared: bool = False, wait_s: float = LOCK_WAIT_S) -> None:
    """Take or change a kernel lock; LockHeldError, an OSError, at the deadline (Rule 3)."""
    held, pause_s, until_s = try_lock(fd, shared=shared), 0.0002, 0.0
    while not held:  # flock has no deadline, so poll
        until_s = until_s or time.monotonic() + wait_s
        if time.monotonic() >= until_s:
            raise LockHeldError(
                errno.ETIMEDOUT, "another process holds the lock of the store and does not let go"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)
        held = try_lock(fd, shared=shared)


@contextmanager
def locked(fd: int, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold the kernel lock of an open file; LockHeldError at the deadline."""
    wait_lock(fd, wait_s=wait_s)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def write_whole(files: Files, path: str, data: bytes) -> None:
    """Write a small file atomically and durably."""
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/{name}.{secrets.token_hex(8)}.tmp"
    fd = files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        files.write(fd, [data], 0)
        files.sync(fd)
        files.rename(temporary, path)
        files.sync_folder(folder)
    except OSError:
        with contextlib.suppress(OSError):
            files.unlink(temporary)
        raise
    finally:
        files.close(fd)
