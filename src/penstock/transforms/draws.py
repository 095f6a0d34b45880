"""The random numbers of one op on one sample.

A counter through splitmix64: cheap to start (every op of every sample has one), the same on every platform, and a few lines to port to a
GPU or another machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock.plan.seeds import GOLDEN64, MASK64, MIX64_A, MIX64_B


class Draws:
    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & MASK64

    def bits(self) -> int:
        """Return 64 random bits: `mix64` of the state, which advances by mix64's own first step. Inlined: all random numbers come from here."""
        found = self._state = (self._state + GOLDEN64) & MASK64
        found = ((found ^ (found >> 30)) * MIX64_A) & MASK64
        found = ((found ^ (found >> 27)) * MIX64_B) & MASK64
        return found ^ (found >> 31)

    def unit(self) -> float:
        """Return a number in [0, 1)."""
        return (self.bits() >> 11) * 2.0**-53

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.unit()

    def below(self, count: int) -> int:
        """Return an integer in [0, count), uniform up to 2**-64 times count."""
        return (self.bits() * count) >> 64

    def chance(self, p: float) -> bool:
        return self.unit() < p

    def sign(self) -> int:
        return 1 if self.bits() >> 63 else -1

    def choice(self, weights: Sequence[float]) -> int:
        """Return a position with probability in proportion to its weight."""
        left = self.unit() * math.fsum(weights)
        for at, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return at
        return len(weights) - 1

    def normal(self) -> float:
        radius = math.sqrt(-2.0 * math.log(1.0 - self.unit()))
        return radius * math.cos(2.0 * math.pi * self.unit())

    def beta(self, a: float, b: float) -> float:
        x, y = self.gamma(a), self.gamma(b)
        return x / (x + y) if x + y > 0 else 0.5

    def gamma(self, shape: float) -> float:
        """Draw by Marsaglia and Tsang's method; shapes below 1 by their boost."""
        if shape < 1:
            return self.gamma(shape + 1) * math.pow(1.0 - self.unit(), 1 / shape)
        d = shape - 1 / 3
        c = 1 / math.sqrt(9 * d)
        while True:
            x = self.normal()
            v = (1 + c * x) ** 3
            if v > 0 and math.log(1.0 - self.unit()) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v

    def order(self, count: int) -> list[int]:
        """Return 0 … count - 1 in random order."""
        found = list(range(count))
        for at in range(count - 1, 0, -1):
            other = self.below(at + 1)
            found[at], found[other] = found[other], found[at]
        return found
