"""What samples cost to prepare, as their dataset knows it without preparing them.

Rule 1: costs are facts of the data, so every rank finds the same. Measured times would differ.
Rule 2: any unit will do, and a part that all samples cost alike may be left out: only differences count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.sources.sources import ByteRange, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCosts:
    says: str
    """What they are, in words."""
    of: Callable[[Sequence[int]], Iterable[float]]
    """Returns the costs of the samples with these indices."""


def users_costs(dataset: Any) -> KnownCosts | None:
    """Return the costs that a user's dataset gives, by `costs()`, else by `cost(index)`; None if it has neither."""
    name = type(dataset).__name__
    if callable(getattr(dataset, "costs", None)):
        return KnownCosts(says=f"{name}.costs()", of=lambda keys: all_costs(dataset)[keys])
    if callable(getattr(dataset, "cost", None)):
        return KnownCosts(says=f"{name}.cost(index)", of=lambda keys: map(dataset.cost, keys))
    return None


def all_costs(dataset: Any) -> NDArray[np.float64]:
    given = dataset.costs()
    try:
        found = np.asarray(given, np.float64)
    except (TypeError, ValueError, OverflowError):
        what = f"a {type(given).__name__} that is no array of numbers"
    else:
        if found.shape == (len(dataset),):
            return found
        what = f"an array of shape {found.shape}"
    raise ConfigError(
        f"{type(dataset).__name__}.costs() must give one number for each of {len(dataset)} samples, it gave {what}"
    )


def file_bytes(locate: Callable[[int], ByteRange], source: Callable[[], Source]) -> KnownCosts:
    """Return the bytes of each sample's file, or of its part, as costs."""

    def sizes(keys: Sequence[int]) -> Iterator[int]:
        files = source()
        for name, start, end in map(locate, keys):
            yield (files.size(name) if end is None else end) - start

    return KnownCosts(says="the bytes of its file", of=sizes)
