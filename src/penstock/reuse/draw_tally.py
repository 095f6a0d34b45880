"""Draws of some samples, recorded by all processes of a loader in shared memory, to measure diversity.

Rule 1: `FOLLOWED` samples are followed (all, if there are fewer), spread evenly over the renewal places, the same in every process. The others
        cost nothing.
Rule 2: a sample is used once an epoch, so each draw has its own cell. Preparing it again writes the same.
Rule 3: a use counts only if the draw of its stored part is known; entries of an earlier run do not count.
Rule 4: epochs from `EPOCHS` on are not counted.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from penstock.plan.renewal import Renewal
from penstock.plan.seeds import MASK64, mix64
from penstock.policy.diversity import LARGE, Followed
from penstock.wire.shared_table import SharedTable

FOLLOWED, EPOCHS = 128, 512
"""A kilobyte per epoch and kind of draw: a megabyte in all."""


class DrawTally:
    def __init__(self, renewal: Renewal) -> None:
        """Raise OSError if there is no memory."""
        self.renewal = renewal
        count = min(FOLLOWED, renewal.length)
        self.samples = renewal.places(np.arange(count) * renewal.length // max(1, count))
        self.slots = {sample: slot for slot, sample in enumerate(self.samples.tolist())}
        """Table columns of the followed samples."""
        drawn = [(name, np.int64, (EPOCHS, count)) for name in ("partial", "uses")]
        self._table = SharedTable(*drawn, ("outcomes", np.float64, (2, count)))
        """`partial`: draw of the stored part, by renewal epoch; 0: unknown. `uses`: draw of both parts, by epoch of use; 0: none seen. `outcomes`:
        of the stored part and of the final one."""
        self._renewed: dict[int, NDArray[np.int64]] = {}

    def partial(self, sample: int, renewed: int, drawn: int, outcomes: float) -> None:
        """Record the draw of a stored part and its number of outcomes. Call it before the part is stored."""
        if renewed < EPOCHS:
            slot = self.slots[sample]
            self._table["outcomes"][0, slot] = min(outcomes, LARGE)
            self._table["partial"][renewed, slot] = (drawn & (MASK64 >> 1)) | 1

    def use(self, sample: int, epoch: int, renewed: int, drawn: int, outcomes: float) -> None:
        """Record a use of the part stored in epoch `renewed`, with this draw for the final part."""
        if epoch < EPOCHS:
            slot = self.slots[sample]
            kept = int(self._table["partial"][renewed, slot])
            self._table["outcomes"][1, slot] = min(outcomes, LARGE)
            self._table["uses"][epoch, slot] = (mix64(mix64(kept) ^ drawn) >> 1) | 1 if kept else 0

    # ---- reading

    @property
    def epochs(self) -> list[int]:
        """Epochs in which uses were seen."""
        found: list[int] = np.flatnonzero(self._table["uses"].any(axis=1)).tolist()
        return found

    def followed(self) -> list[Followed]:
        """Return the observations of each sample."""
        epochs = self.epochs
        if not epochs:
            return []
        uses = self._table["uses"][epochs]
        renewed = np.stack([self._renewed_in(epoch) for epoch in epochs])
        found = []
        for slot, (partial, final) in enumerate(self._table["outcomes"].T.tolist()):
            seen = uses[:, slot] != 0
            if seen.any():
                rounds = Counter(renewed[seen, slot].tolist())
                unique = len(np.unique(uses[seen, slot]))
                found.append(Followed(max(final, partial * final), final, sorted(rounds.values()), unique))
        return found

    def _renewed_in(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._renewed:
            self._renewed[epoch] = self.renewal.renewed(self.samples, epoch)
        return self._renewed[epoch]
