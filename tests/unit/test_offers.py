"""What datasets offer workers, through torch's own wrappers: among it, which file a sample comes from."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import ConcatDataset, Dataset, Subset

from penstock import StagedDataset
from penstock.dataset.offers import Offer, Offers, offered
from penstock.dataset.offers import path_of as path_in


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


def test_any_dataset_offers_its_items_and_no_more() -> None:
    offer, items = offered(["a", "b"]), ["a", "b"]
    assert [offer.get(0), offer.get(-1)] == items
    assert offer.shown == items
    assert not offer.draws_alone()
    assert offer.drawn_first() is None
    assert (offer.sample_bytes, offer.repeatable) == (0, True)
    offer.begin(3, [0, 1])
    offer.load()


def test_a_subset_offers_the_samples_of_the_dataset_in_it_as_they_are_offered() -> None:
    """And follows its indices."""

    class Unlike(Files):
        def __getitem__(self, key: int) -> str:
            return f"item {key}"

        def offer(self) -> Offer:
            return Offer(shown="the user's", get=lambda key: f"offered {key}", draws_alone=lambda: True)

    subset = Subset(Unlike("a", 5), [4, 2])
    offer = offered(subset)
    assert offer.get(0) == "offered 4"
    assert offer.shown is subset
    assert not offer.draws_alone()
    subset.indices = [1]
    assert offer.get(0) == "offered 1"


class Bytes(StagedDataset):
    def __init__(self) -> None:
        super().__init__(lambda _: (b"", 0), None, 3)


class OwnItems(Bytes):
    def __getitem__(self, index: int) -> Any:
        return "mine", index


def test_a_getitem_of_a_subclass_counts() -> None:
    assert not Bytes().has_own_items
    plain = Bytes()
    assert plain.offer().get == plain._unfinished
    assert OwnItems().has_own_items
    assert OwnItems().offer().get(2) == ("mine", 2)
    assert path_of(OwnItems(), 0) is None
