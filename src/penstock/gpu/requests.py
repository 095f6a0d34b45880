"""What the training process wants of workers, and how much of it is on its way: numbers that all of them see, forked or spawned."""

from __future__ import annotations

import numpy as np

from penstock.plan.seeds import Company
from penstock.policy.dearest import FIRST, share_after
from penstock.wire.shared_table import SharedTable

AS_THERE_IS_ROOM = -1.0
"""A share: not fixed, but as many as may be on their way."""
ENTRIES = 4096
"""Batches that are told apart. Where two that are under way have the same entry, the count is a little off until one of them has come."""


class Requests:
    def __init__(self, table: SharedTable | None = None) -> None:
        columns = (
            ("numbers", np.float64, (8,)),
            ("counts", np.int32, (ENTRIES,)),
            ("born", np.int32, (ENTRIES,)),
        )
        self._table, self._refused = table or SharedTable(*columns), 0.0
        self._numbers, self._counts = self._table["numbers"], self._table["counts"]
        self._born = self._table["born"]
        """How many batches had come when an entry was counted last."""
        if table is None:
            self._numbers[3] = FIRST

    def __reduce__(self) -> tuple[type, tuple[SharedTable]]:
        return Requests, (self._table,)

    # ---- said by the training process

    def say(self, *, share: float, limit: float, finishes: bool, samples: int) -> None:
        """`samples`: of a batch."""
        self._numbers[:3] = share, limit, finishes
        self._numbers[4] = samples

    @property
    def share(self) -> float:
        """Of samples, that workers leave as files; or as there is room."""
        return float(self._numbers[0])

    @property
    def limit(self) -> float:
        """Files that may be on their way."""
        return float(self._numbers[1])

    @property
    def finishes(self) -> bool:
        """Whether the kernels finish what workers decode."""
        return bool(self._numbers[2])

    # ---- files that are on their way, by batch. What is counted for a batch that never comes (it failed, or nobody wants it any more)
    # is forgotten when many others have come since.

    @staticmethod
    def entry_of(company: Company | None) -> int:
        return 0 if company is None else company.batch % ENTRIES

    def has_room(self) -> bool:
        """Whether one more may be on its way; what counts as dear follows."""
        room = bool(self._counts.sum() < self._numbers[1])
        if not room:
            self._numbers[6] += 1
        self._numbers[3] = share_after(float(self._numbers[3]), room=room, samples=float(self._numbers[4]))
        return room

    def was_full(self) -> bool:
        """Whether a worker has found no room since this was asked last; workers that count at the same instant count as one."""
        before, self._refused = self._refused, float(self._numbers[6])
        return before != self._refused

    @property
    def dear(self) -> float:
        """The share of samples that counts as dear: workers search it together."""
        return float(self._numbers[3])

    def left(self, entry: int) -> None:
        """A worker has left one more of a batch as a file. Two workers at the same instant may count as one: the batch will tell."""
        self._counts[entry] += 1
        self._born[entry] = self._numbers[5]

    def came(self, entry: int, files: int, *, lasting: int) -> None:
        """A batch has come, with so many; what was counted more than `lasting` batches ago will not."""
        self._numbers[5] += 1
        self._counts[entry], self._born[entry] = files, self._numbers[5]
        self._counts[self._born < self._numbers[5] - lasting] = 0

    def made(self, entry: int, files: int) -> None:
        """So many of them are done. Called by one thread at a time."""
        self._counts[entry] = max(0, int(self._counts[entry]) - files)

    def forget(self) -> None:
        """Nothing is on its way."""
        self._counts[:] = 0
