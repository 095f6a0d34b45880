"""What tests of dealt batches share: all ranks of a world, run to a point and resumed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from penstock import DataLoader

Make = Callable[..., DataLoader[Any]]
"""`make(rank, world, workers, **settings)`: one rank's loader."""


def resumed_by(
    make: Make, state: Any, rank: int, world: int, workers: int = 0, **settings: Any
) -> DataLoader[Any]:
    loader = make(rank, world, workers, **settings)
    loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def run_by(make: Make, world: int, batches: int, **settings: Any) -> tuple[Any, list[Any]]:
    """All ranks deliver `batches`; rank 0's state, and what was delivered."""
    loaders = [make(rank, world, **settings) for rank in range(world)]
    iterators = [iter(loader) for loader in loaders]
    delivered = [next(iterator) for iterator in iterators for _ in range(batches)]
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states), "any rank's state will do"
    return states[0], delivered


def rows(batches: Any) -> Counter[tuple[float, ...]]:
    """Samples with their draws."""
    return Counter(tuple(row.tolist()) for batch in batches for row in batch)
