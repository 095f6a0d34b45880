"""Which file a sample comes from, through torch's own wrappers."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import ConcatDataset, Dataset, Subset

from penstock.lanes.offers import Offer, Offers, offered
from penstock.lanes.offers import path_of as path_in


class Files(Dataset[Any], Offers):
    def __init__(self, name: str, length: int) -> None:
        self.name, self.length = name, length

    def __len__(self) -> int:
        return self.length

    def offer(self) -> Offer:
        return Offer(shown=self, get=lambda key: key, path_of=lambda key: f"{self.name}{key}")


def path_of(dataset: Any, key: Any) -> str | None:
    return path_in(offered(dataset), key)


@pytest.mark.parametrize(
    ("key", "path"), [(0, "a0"), (2, "a2"), (3, "b0"), (7, "b4"), (-1, "b4"), (-5, "b0"), (-8, "a0")]
)
def test_a_sample_of_several_datasets_is_found_in_its_own(key: int, path: str) -> None:
    both: Any = ConcatDataset([Files("a", 3), Files("b", 5)])
    assert path_of(both, key) == path
    assert path_of(Subset(both, [key]), 0) == path


def test_of_a_dataset_that_does_not_know_there_is_none() -> None:
    assert path_of([1, 2], 0) is None
    assert path_of(Subset(Files("a", 3), [0]), 9) is None
