"""Learn the cost of preparation steps: seconds as a linear function of their size. Pure.

Each kind of work (decoding a format, an op) has its own line: seconds = a + b * pixels (+ c * bytes, for decoders).
Old observations fade, so that a slower machine is noticed. Outliers (a page fault, a busy core) are cut to a multiple of the
prediction, so that one does not bend the line.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MEMORY = 0.995
"""Factor by which each new observation fades the older ones."""
OUTLIER = 2.0
"""Cap on an observation, as a multiple of its prediction."""
SETTLED = 8
"""Observations of a kind before its predictions cap others."""
IN_A_ROW = 4
RIDGE = 1e-6

Features = tuple[float, ...]


@dataclass(slots=True)
class Line:
    """Least squares over (1, *features), from fading sums."""

    count: int = 0
    squares: list[list[float]] = field(default_factory=list)
    products: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    """Means of the features."""
    mean: float = 0.0
    _strange: int = 0
    _weights: list[float] | None = None

    def observe(self, features: Features, seconds: float) -> None:
        row = [1.0, *features]
        if not self.squares:
            self.squares = [[0.0] * len(row) for _ in row]
            self.products = [0.0] * len(row)
            self.sizes = [0.0] * len(features)
        self.count += 1
        if self.count <= 2:  # the first of its kind loads code and fills caches: the second replaces it
            self.mean = seconds
        if self.count == 1:
            return
        share = 1.0 / min(self.count - 1, 100)
        self.sizes = [size + (x - size) * share for size, x in zip(self.sizes, features, strict=True)]
        seconds = self._believed(features, seconds)
        self.mean += (seconds - self.mean) * share
        # The relative error counts, and cost grows with size: weigh small pieces more, since they are many.
        weight = (1.0 + sum(x / size for x, size in zip(features, self.sizes, strict=True) if size > 0)) ** -2
        for i, a in enumerate(row):
            self.products[i] = MEMORY * self.products[i] + weight * a * seconds
            for j, b in enumerate(row):
                self.squares[i][j] = MEMORY * self.squares[i][j] + weight * a * b
        self._weights = None

    def _believed(self, features: Features, seconds: float) -> float:
        """Cap an outlier; several in a row are not outliers."""
        most = OUTLIER * self.predict(features) if self.count > SETTLED else seconds
        self._strange = self._strange + 1 if seconds > most else 0
        return seconds if not 0 < self._strange < IN_A_ROW else most

    def predict(self, features: Features) -> float:
        """Return the seconds for such a piece; never negative."""
        if self.count < 4:
            return self.mean
        if self._weights is None:
            self._weights = solved(self.squares, self.products)
        return max(0.0, sum(w * x for w, x in zip(self._weights, (1.0, *features), strict=True)))


def solved(squares: list[list[float]], products: list[float]) -> list[float]:
    """Solve for the weights by elimination. Scale columns first; a ridge keeps columns without spread harmless."""
    size = len(products)
    scale = [max(squares[i][i], 1e-300) ** 0.5 for i in range(size)]
    rows = [
        [squares[i][j] / scale[i] / scale[j] + (RIDGE if i == j else 0.0) for j in range(size)]
        + [products[i] / scale[i]]
        for i in range(size)
    ]
    for i in range(size):
        best = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[best] = rows[best], rows[i]
        pivot = rows[i][i] or RIDGE
        for r in range(size):
            if r != i:
                factor = rows[r][i] / pivot
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
        rows[i] = [a / pivot for a in rows[i]]
    return [rows[i][size] / scale[i] for i in range(size)]
