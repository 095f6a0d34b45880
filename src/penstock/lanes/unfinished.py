"""Tensors that are yet to be written, so that they can be written where they belong: straight into a batch's memory.

A dataset of ours that has them says so by a method `_penstock_unfinished(index)` beside `__getitem__`: the same sample, with such tensors in it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any

import torch
from torch.utils.data import Subset


class Unfinished:
    """A tensor of which all is known but where its values go. Writing it does not fail: but for pixels that are gone from a store meanwhile and
    then cannot be made again, with `on_error="raise"` only. Of a sample that is drawn first (`pipeline.deferred`), where it goes is only noted."""

    __slots__ = ("dtype", "shape", "write")

    def __init__(
        self, dtype: torch.dtype, shape: tuple[int, ...], write: Callable[[torch.Tensor], object]
    ) -> None:
        self.dtype, self.shape, self.write = dtype, shape, write

    def tensor(self) -> torch.Tensor:
        found = torch.empty(self.shape, dtype=self.dtype)
        self.write(found)
        return found


def finished(sample: Any) -> Any:
    """The sample as its dataset's `__getitem__` gives it."""
    if type(sample) is not tuple:
        return sample
    return tuple(item.tensor() if type(item) is Unfinished else item for item in sample)


def getter(dataset: Any) -> Callable[[Any], Any]:
    """How to get samples of a dataset, unfinished where it can: unless a subclass has another `__getitem__`, which counts."""
    if type(dataset) is Subset:
        inner, indices = getter(dataset.dataset), dataset.indices
        return lambda key: inner(indices[key])
    owner = next((kind for kind in type(dataset).__mro__ if "__getitem__" in vars(kind)), object)
    if "_penstock_unfinished" in vars(owner):
        found: Callable[[Any], Any] = dataset._penstock_unfinished
        return found
    return lambda key: getitem(dataset, key)
