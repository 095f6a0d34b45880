"""A shuffle that can be read at any place: a keyed permutation of range(n) in constant memory."""

import numpy as np
from numpy.typing import NDArray

from penstock.plan.seeds import GOLDEN64, MASK64, MIX64_A, MIX64_B


class Permutation:
    """The permutation of range(n) that `key` names."""

    def __init__(self, key: int, n: int) -> None:
        self.key, self.n = key, n
        state = (np.arange(n, dtype=np.uint64) + np.uint64(key & MASK64)) * np.uint64(GOLDEN64)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(MIX64_A)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(MIX64_B)
        self._table = np.argsort(state ^ (state >> np.uint64(31)), kind="stable")

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._table[positions]
