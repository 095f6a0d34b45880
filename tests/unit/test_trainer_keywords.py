"""What trainers carry over when they build a loader from ours."""

from __future__ import annotations

import inspect

from torch.utils.data import DataLoader as TorchDataLoader

from penstock import DataLoader
from penstock.engine.trainers import KEYWORDS


def parameters(kind: type) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind).parameters)


def test_the_carried_keywords_are_exactly_those_that_torch_does_not_have() -> None:
    assert set(KEYWORDS) == set(parameters(DataLoader)) - set(parameters(TorchDataLoader))


def test_every_parameter_is_an_attribute_of_the_same_name_but_shuffle_which_lives_on_in_the_sampler() -> None:
    loader = DataLoader(range(4))
    assert [name for name in parameters(DataLoader) if not hasattr(loader, name)] == ["shuffle"]


def test_a_loader_built_from_anothers_keywords_has_them() -> None:
    given = {"seed": 3, "task_size": 2, "prefetch_batches": 5, "on_error": "skip", "slab_bytes": "8MiB"}
    loader = DataLoader(range(4), **given)
    again = DataLoader(range(4), **loader.penstock_keywords)
    assert again.penstock_keywords == loader.penstock_keywords
    assert given.items() <= again.penstock_keywords.items()


def test_a_sharded_loader_can_be_built_anew_from_its_own_attributes() -> None:
    loader = DataLoader(range(10), 2, shuffle=True, shard=(1, 2), seed=1)
    again = DataLoader(range(10), 2, sampler=loader.sampler, shard=loader.shard, seed=1)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in loader]
