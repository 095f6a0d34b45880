"""Tensors that are yet to be written, so that they can be written where they belong: straight into a batch's memory. Datasets of ours offer
(`lanes.offers`) their samples with such tensors in them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


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
