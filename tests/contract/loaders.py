"""Both loaders that keep torchdata's contract, and what its tests do with them."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from penstock import DataLoader
from tests.contract.streams import State

LOADERS: dict[str, Any] = {"torchdata": StatefulDataLoader, "penstock": DataLoader}
each_loader = pytest.mark.parametrize("loader_class", LOADERS.values(), ids=LOADERS)
each_workers = pytest.mark.parametrize("workers", [0, 2])


def seen(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def stored(state: State) -> State:
    """As a checkpoint keeps it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: State = torch.load(file, weights_only=False)
    return loaded


def left_at(loader: Any, batches: int) -> State:
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return stored(loader.state_dict())


def resumed(make: Any, state: State) -> Any:
    loader = make()
    loader.load_state_dict(state)
    return loader


def kinds_of(loader_class: Any, dataset: Any, **settings: Any) -> Any:
    def make() -> Any:
        return loader_class(dataset(), **{"batch_size": 3, **settings})

    return make
