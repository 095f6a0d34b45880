"""Tensors written later, straight into a batch's memory. Our datasets offer (`dataset.offers`) samples that contain them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Unfinished:
    """A tensor whose values are not written yet. Writing fails only with `on_error="raise"`, if pixels have left a store meanwhile and
    cannot be made again. With two-phase preparation (`pipeline.deferred`), `write` only notes the destination."""

    __slots__ = ("dtype", "pixels", "shape", "write")

    def __init__(
        self,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        write: Callable[[torch.Tensor], object],
        pixels: Any = None,
    ) -> None:
        """`pixels`: an image from which the last step of the dataset's chain (`Offer.tail`) alone is missing, if it is that."""
        self.dtype, self.shape, self.write, self.pixels = dtype, shape, write, pixels

    def tensor(self) -> torch.Tensor:
        found = torch.empty(self.shape, dtype=self.dtype)
        self.write(found)
        return found


def finished(sample: Any) -> Any:
    """Return the sample as its dataset's `__getitem__` gives it."""
    if type(sample) is not tuple:
        return sample
    return tuple(item.tensor() if type(item) is Unfinished else item for item in sample)
