"""Datasets that draw from every global generator, and whose samples can do harm the first few times they are prepared.

A harm is named, not given as a function, so that a dataset can be pickled into any process and written into a message.
How often a sample has been prepared is counted by files in a folder, since those who prepare it do not live to tell.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from penstock import DataLoader


class Drawn(Dataset[torch.Tensor]):
    """Sample i is (i, one draw of each global generator), after `pause_s` of waiting."""

    def __init__(self, length: int = 64, pause_s: float = 0.0) -> None:
        self.length, self.pause_s = length, pause_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.pause_s:
            time.sleep(self.pause_s)
        return torch.tensor(
            [index, random.random(), np.random.random(), torch.rand(()).item()], dtype=torch.float64
        )


class Harmful(Drawn):
    """`harm` befalls whoever prepares sample `at`, the first `times` times; `folder` counts."""

    def __init__(
        self,
        harm: str,
        at: int,
        folder: Path | str,
        *,
        times: int = 1,
        length: int = 64,
        pause_s: float = 0.0,
    ) -> None:
        super().__init__(length, pause_s)
        self.harm, self.at, self.folder, self.times = harm, at, str(folder), times

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.at and count_up(self.folder, f"sample-{index}") <= self.times:
            HARMS[self.harm](self)
        return super().__getitem__(index)


class LongToLoad(Drawn):
    """Whoever unpickles it is busy with that for a minute: a worker that is being imported."""

    def __init__(self, folder: str, length: int) -> None:
        super().__init__(length)
        self.folder = folder

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        count_up(self.folder, "loading")
        time.sleep(60.0)


def count_up(folder: str, name: str) -> int:
    """One more than the last call said, in whatever process that was."""
    for number in itertools.count(1):
        try:
            os.close(os.open(f"{folder}/{name}.{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        return number
    raise AssertionError


def counted(folder: Path, name: str) -> int:
    return len(list(folder.glob(f"{name}.*")))


def spin_with_the_interpreter_lock() -> None:
    """Never returns to the interpreter: no signal handler of Python's, no other thread will ever run."""
    libc = ctypes.PyDLL(None)  # unlike CDLL, keeps the lock during the call
    while True:
        libc.pause()


def leak(dataset: Any) -> None:
    dataset.__dict__.setdefault("kept", []).append(bytearray(os.urandom(1 << 10) * (20 << 10)))


def hoard() -> None:
    """Touch ever more memory, until someone objects."""
    kept = []
    for _ in range(256):
        kept.append(bytearray(b"x" * (4 << 20)))


HARMS: dict[str, Callable[[Any], Any]] = {
    "SIGKILL": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "SIGTERM": lambda _: os.kill(os.getpid(), signal.SIGTERM),
    "SIGSTOP": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "segfault": lambda _: ctypes.string_at(0),
    "abort": lambda _: os.abort(),
    "_exit": lambda _: os._exit(7),
    "exit": lambda _: sys.exit(5),
    "sleep": lambda _: time.sleep(3600),
    "spin": lambda _: spin_with_the_interpreter_lock(),
    "raise": lambda dataset: (_ for _ in ()).throw(ValueError(f"sample {dataset.at} is broken")),
    "leak": leak,
    "hoard": lambda _: hoard(),
}


class Large(Dataset[torch.Tensor]):
    """Sample i is `nbytes` times i, modulo 251."""

    def __init__(self, length: int, nbytes: int) -> None:
        self.length, self.nbytes = length, nbytes

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.nbytes,), index % 251, dtype=torch.uint8)


class Stream(IterableDataset[torch.Tensor]):
    """Worker w of n yields w, w + n, w + 2n, …"""

    def __init__(self, length: int = 64, pause_s: float = 0.0) -> None:
        self.length, self.pause_s = length, pause_s

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            time.sleep(self.pause_s)
            yield torch.tensor([number])


def expected(dataset: Dataset[Any], *, epochs: int = 1, **options: Any) -> list[list[Any]]:
    """The batches of a loader with these options that nothing befalls, epoch by epoch: prepared in this process."""
    for name in ("hang_timeout", "persistent_workers", "prefetch_factor", "multiprocessing_context"):
        options.pop(name, None)
    loader: DataLoader[Any] = DataLoader(dataset, **{**options, "num_workers": 0})
    return [list(loader) for _ in range(epochs)]


def same(one: Any, other: Any) -> bool:
    """Equal content, bit for bit."""
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(itertools.starmap(same, zip(one, other, strict=True)))
    return bool(one == other)
