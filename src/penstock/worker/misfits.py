"""Find the sample that does not fit its batch, to explain a failed collate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
import torch


def odd_one(samples: list[Any], keys: list[Any]) -> str:
    """Describe the first sample that differs from the one before it."""
    for at in range(1, len(samples)):
        for before, this in zip_longest(
            traits(samples[at - 1]), traits(samples[at]), fillvalue=("", "nothing")
        ):
            if before != this:
                field = f" in {this[0] or before[0]}" if this[0] or before[0] else ""
                return (
                    f"penstock: sample {keys[at]!r} has {this[1]}{field}, where sample {keys[at - 1]!r} has {before[1]}: "
                    f"give all samples of a batch one form, or a collate_fn that brings them together"
                )
    return "penstock: all samples of the batch have one form"


def traits(sample: Any, path: str = "sample") -> Iterator[tuple[str, str]]:
    """Yield (path, description) of every part of a sample, in a fixed order."""
    name = type(sample).__name__
    if isinstance(sample, (torch.Tensor, np.ndarray)):
        yield path, f"{name} of {str(sample.dtype).removeprefix('torch.')} {tuple(sample.shape)}"
    elif isinstance(sample, Mapping):
        yield path, f"{name} with keys {sorted(map(repr, sample))}"
        for key in sorted(sample, key=repr):
            yield from traits(sample[key], f"{path}[{key!r}]")
    elif isinstance(sample, (list, tuple)):
        yield path, f"{name} of {len(sample)}"
        for at, part in enumerate(sample):
            yield from traits(part, f"{path}[{at}]")
    else:
        yield path, name
