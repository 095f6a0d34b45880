"""Samples that run nobody's code are not seeded one by one; nothing that is drawn behind them can tell."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from penstock.worker import prepare
from penstock.worker.prepare import Preparer, Recipe, Where, is_inert

KEYS = [4, 2, 7, 1]


class Plain(Dataset[Any]):
    """The same samples through code of the user's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getitem__(self, key: int) -> Any:
        return self.inner[key]


class Marked(torch.Tensor):
    pass


INERT = {
    "list": [torch.empty(0)] * 9,
    "tuple": tuple(range(9)),
    "range": range(9),
    "tensor": torch.arange(9),
    "array": np.arange(9),
    "tensors": TensorDataset(torch.empty(9, 0), torch.arange(9)),
    "subset": Subset(TensorDataset(torch.arange(9)), range(8)),
}


def prepared(
    dataset: Any, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> tuple[list[Any], list[float], int]:
    """Samples, what the three generators give next, and how often they were seeded."""
    seeds: list[int] = []

    def seed_all(seed: int, *rest: Any) -> None:
        seeds.append(seed)
        original(seed, *rest)

    original = prepare.seed_all
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "seed_all", seed_all)
        recipe = Recipe(dataset=dataset, collate_fn=default_collate, auto_collation=True, seed=3, **more)
        samples = list(Preparer(recipe).samples(Where(1, 0, 20, 2, 5), KEYS))
    return samples, [random.random(), np.random.random(), torch.rand(()).item()], len(seeds)


@pytest.mark.parametrize("kind", INERT)
def test_only_the_last_of_samples_without_code_is_seeded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, draws, seeded = prepared(INERT[kind], monkeypatch)
    plainly, expected, each = prepared(Plain(INERT[kind]), monkeypatch)
    assert (seeded, each) == (1, len(KEYS))
    assert draws == expected
    assert repr(samples) == repr(plainly)
    assert [ordinal for ordinal, _ in samples] == [5, 6, 7, 8]


def test_where_errors_are_forgiven_each_is_seeded_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepared(INERT["list"], monkeypatch, on_error="skip")[2] == len(KEYS)


def test_what_may_run_code_is_seeded_sample_by_sample() -> None:
    class Own(list[int]):
        pass

    marked = torch.arange(3).as_subclass(Marked)
    others = [
        Plain([1]),
        Own([1]),
        TensorDataset(marked),
        Subset(Plain([1]), [0]),
        Subset([1], Own([0])),
        {0: 1},
    ]
    assert not any(map(is_inert, others))
