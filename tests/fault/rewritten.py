"""Thousands of states of a store's files: how tests put them down, and open them, without waiting for the disk."""

from __future__ import annotations

import os

from penstock.reuse.stores.disk_files import Files


class Unsynced(Files):
    """Nobody will cut the power."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, path: str) -> None:
        pass


class AnotherBoot(Unsynced):
    """The machine was started anew."""

    def boot(self) -> bytes:
        return b"after the cut".ljust(16)


def write_over(path: str | os.PathLike[str], data: bytes) -> None:
    """Make this a file's content. Never cut to nothing first: ext4 has whoever closes such a file wait for the disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, data)
    os.ftruncate(fd, len(data))
    os.close(fd)
