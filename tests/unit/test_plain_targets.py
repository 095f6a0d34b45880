"""Targets as text: they come back as they were, or are refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from penstock.reuse import plain_targets


@pytest.mark.parametrize(
    "target",
    [
        None,
        True,
        -(2**70),
        1e-300,
        float("inf"),
        "wörd\ud800",
        b"\0\xff",
        [1, (2, "x"), {"a": [None], 3: (4.5,), (1, 2): {}}],
        np.float32(1.5),
        np.arange(6, dtype=">i4").reshape(2, 3)[:, ::2],
        torch.arange(6.0).reshape(2, 3).T,
        torch.tensor(7),
    ],
    ids=str,
)
def test_targets_come_back_as_they_were(target: Any) -> None:
    found = plain_targets.loads(plain_targets.dumps(target))
    assert type(found) is type(target)
    if isinstance(target, (np.ndarray, torch.Tensor)):
        assert found.dtype == target.dtype
        assert found.shape == target.shape
        assert bool((found == target).all())
    else:
        assert found == target


@pytest.mark.parametrize(
    "target", [object(), {1, 2}, np.array([object()]), [torch.zeros(2, requires_grad=True)]]
)
def test_other_targets_are_not_written(target: Any) -> None:
    with pytest.raises(plain_targets.Unwritable):
        plain_targets.dumps(target)


def test_a_pickle_is_not_read() -> None:
    with pytest.raises(ValueError):
        plain_targets.loads(pickle.dumps({"label": 3}))
