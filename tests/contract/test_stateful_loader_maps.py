"""What torchdata's `StatefulDataLoader` promises of map-style datasets and their samplers, held by both loaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import BatchSampler as TheirBatchSampler
from torchdata.stateful_dataloader.sampler import RandomSampler as TheirRandomSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from tests.contract.loaders import each_loader, each_workers, kinds_of, left_at, resumed, seen
from tests.contract.streams import State

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata's constructor
    pytest.mark.filterwarnings("ignore:resuming .*exact only if the sampler repeats itself"),
]


class Squares(Dataset[int]):
    """With something of its own to keep."""

    def __init__(self, size: int = 22) -> None:
        self.size, self.level = size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: int) -> int:
        return key * key + self.level

    def state_dict(self) -> State:
        return {"level": self.level}

    def load_state_dict(self, state: State) -> None:
        self.level = state["level"]


class Strides(Sampler[int]):
    """A sampler that keeps its place."""

    def __init__(self) -> None:
        self.at = 0

    def __len__(self) -> int:
        return 22

    def __iter__(self) -> Iterator[int]:
        while self.at < 22:
            self.at += 1
            yield (self.at * 5) % 22
        self.at = 0

    def state_dict(self) -> State:
        return {"at": self.at}

    def load_state_dict(self, state: State) -> None:
        self.at = state["at"]


class WalkingSampler(Sampler[int]):
    """A sampler whose iterator keeps the place, and which does not repeat itself."""

    turn = 0

    def __len__(self) -> int:
        return 22

    def __iter__(self) -> Iterator[int]:
        self.turn += 1
        return Steps(self.turn)


class Steps:
    def __init__(self, turn: int) -> None:
        self.turn, self.at = turn, 0

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> int:
        if self.at >= 22:
            raise StopIteration
        self.at += 1
        return (self.at * (2 * self.turn + 1)) % 22

    def state_dict(self) -> State:
        return {"turn": self.turn, "at": self.at}

    def load_state_dict(self, state: State) -> None:
        self.turn, self.at = state["turn"], state["at"]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(8)


ORDERS: dict[str, Any] = {
    "sequential": dict,
    "shuffled by a generator": lambda: {"shuffle": True, "generator": seeded()},
    "sampler": lambda: {"sampler": torch.utils.data.RandomSampler(range(22), generator=seeded())},
    "plain list": lambda: {"sampler": [5, 3, 8, 1, 2, 2, 9]},
    "batch sampler": lambda: {"batch_sampler": [[1, 2], [3], [4, 5, 6]], "batch_size": 1},
    "sampler with a place": lambda: {"sampler": Strides()},
    "torchdata's random": lambda: {"sampler": TheirRandomSampler(range(22), generator=seeded())},
    "torchdata's batches": lambda: {
        "batch_sampler": TheirBatchSampler(TheirRandomSampler(range(22), generator=seeded()), 4, False),
        "batch_size": 1,
    },
    "torchdata's distributed": lambda: {"sampler": StatefulDistributedSampler(range(22), 2, 1)},
    "iterator with a place": lambda: {"sampler": WalkingSampler()},
}


@each_loader
@each_workers
@pytest.mark.parametrize("order", ORDERS)
def test_a_map_style_dataset_goes_on_behind_the_batch_in_hand(
    order: str, workers: int, loader_class: Any
) -> None:
    def make() -> Any:
        return loader_class(Squares(), **{"batch_size": 4, "num_workers": workers, **ORDERS[order]()})

    whole = seen(make())
    # At its end this sampler starts over, and torchdata asks it nevertheless.
    starts_over = order == "sampler with a place" and loader_class is StatefulDataLoader
    for batches in (1, 2, len(whole))[: 2 if starts_over else 3]:
        assert seen(resumed(make, left_at(make(), batches))) == whole[batches:]


@each_loader
@each_workers
def test_the_last_batch_of_a_map_style_dataset_leaves_none_and_then_comes_the_next_epoch(
    workers: int, loader_class: Any
) -> None:
    make = kinds_of(loader_class, Squares, num_workers=workers)
    whole = seen(make())
    loader = resumed(make, left_at(make(), len(whole)))
    assert [seen(loader), seen(loader), seen(loader)] == [[], whole, whole]


@each_loader
def test_the_state_of_a_map_style_dataset_is_carried_along(loader_class: Any) -> None:
    dataset = Squares()
    dataset.level = 100
    state = left_at(loader_class(dataset, batch_size=4), 2)
    make = kinds_of(loader_class, Squares, batch_size=4)
    assert seen(resumed(make, state)) == seen(loader_class(dataset, batch_size=4))[2:]
