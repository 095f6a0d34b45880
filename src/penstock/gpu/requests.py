"""Requests of the training process to workers, and counts of files in flight, in shared memory for forked and spawned workers."""

from __future__ import annotations

import numpy as np

from penstock.plan.seeds import Company
from penstock.policy.dearest import FIRST, share_after
from penstock.wire.shared_table import SharedTable

AS_THERE_IS_ROOM = -1.0
"""No fixed share: as many as may be in flight."""
ENTRIES = 4096
"""Batches counted separately. If two in flight share an entry, the count is a little off until one arrives."""


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
        """How many batches had arrived when an entry was last counted."""
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
        """Share of samples that workers leave as files, or AS_THERE_IS_ROOM."""
        return float(self._numbers[0])

    @property
    def limit(self) -> float:
        """Files that may be in flight."""
        return float(self._numbers[1])

    @property
    def finishes(self) -> bool:
        """Whether the kernels finish what workers decode."""
        return bool(self._numbers[2])

    # Files in flight, by batch. Counts of a batch that never arrives (it failed, or nobody wants it) expire after many others.

    @staticmethod
    def entry_of(company: Company | None) -> int:
        return 0 if company is None else company.batch % ENTRIES

    @property
    def in_flight(self) -> int:
        """Files that were left and are not made yet."""
        return int(self._counts.sum())

    def has_room(self) -> bool:
        """Return whether one more file may be in flight; adapts what counts as expensive."""
        room = self.in_flight < self.limit
        if not room:
            self._numbers[6] += 1
        self._numbers[3] = share_after(float(self._numbers[3]), room=room, samples=float(self._numbers[4]))
        return room

    def was_full(self) -> bool:
        """Return whether a worker found no room since the last call; workers counting at the same instant count as one."""
        before, self._refused = self._refused, float(self._numbers[6])
        return before != self._refused

    @property
    def dear(self) -> float:
        """Share of samples that counts as expensive: workers search it together."""
        return float(self._numbers[3])

    def left(self, entry: int) -> None:
        """Count one more file of a batch. Two workers at the same instant may count as one: the batch's arrival corrects it."""
        self._counts[entry] += 1
        self._born[entry] = self._numbers[5]

    def came(self, entry: int, files: int, *, lasting: int) -> None:
        """Set the count of an arrived batch; drop counts older than `lasting` batches."""
        self._numbers[5] += 1
        self._counts[entry], self._born[entry] = files, self._numbers[5]
        self._counts[self._born < self._numbers[5] - lasting] = 0

    def made(self, entry: int, files: int) -> None:
        """Subtract files that are done. Called by one thread at a time."""
        self._counts[entry] = max(0, int(self._counts[entry]) - files)

    def forget(self) -> None:
        """Reset: nothing is in flight."""
        self._counts[:] = 0
