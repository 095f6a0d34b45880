"""Whether the GPU can help to prepare a dataset, and what it takes: the dataset as workers then see it, and the lane.

What keeps it from helping is said in a sentence, for `explain()` and for whoever asked for it by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.data import default_collate

from penstock.gpu.lane import GpuLane, Makes
from penstock.gpu.parcels import HEAD, Parcels, SharedNumber
from penstock.lanes.unfinished import getter
from penstock.pipeline.adopt import AdoptedFolder
from penstock.pipeline.chain import calls
from penstock.pipeline.staged import StagedDataset
from penstock.transforms.steps import Size, program_size
from penstock.transforms.tail import Tail

LOOKED_AT = 16
"""Samples whose programs are looked at before it is decided."""
ROOM_FACTOR = 2.0
ROOM_STEP = 64 << 10
"""Parcels have room for this many times the largest file that was looked at, in steps; what is larger is left to workers."""
DETERMINISTIC_SHARE = 0.5
"""Of samples that the GPU prepares where that may not depend on how fast anything is."""


class Prep(NamedTuple):
    dataset: Parcels
    lane: GpuLane


class Look(NamedTuple):
    """What some samples of a dataset show."""

    size: Size
    tail: Tail
    largest: int


def planned(
    dataset: Any,
    collate_fn: Any,
    makes: Callable[[Look], Makes | str] | None,
    device: torch.device,
    *,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format | None,
    deterministic: bool = False,
    fixed_share: float | None = None,
) -> Prep | str:
    """What it takes, or why it cannot be. Without `makes`, the device only scales and normalises: pixels travel as bytes."""
    reason = unsuited(dataset, collate_fn)
    if reason:
        return reason
    look = looked(dataset)
    if isinstance(look, str):
        return look
    maker = None if makes is None else makes(look)
    if isinstance(maker, str):
        return maker
    share = SharedNumber()
    if maker is None:
        fixed_share = 0.0
    elif deterministic and fixed_share is None:
        fixed_share = DETERMINISTIC_SHARE
    lane = GpuLane(
        look.tail, device, maker, share, dtype=dtype, memory_format=memory_format, fixed_share=fixed_share
    )
    room = HEAD.size if maker is None else -(-int(ROOM_FACTOR * look.largest) // ROOM_STEP) * ROOM_STEP
    return Prep(Parcels(dataset, look.size, share=share, room=room, deterministic=deterministic), lane)


def unsuited(dataset: Any, collate_fn: Any) -> str:
    """What is wrong with a dataset, or nothing."""
    if collate_fn is not default_collate:
        return "the batch is made by a collate function of yours"
    if isinstance(dataset, AdoptedFolder):
        python = [type(op).__name__ for op, draw in dataset.chain.ops if draw is None]
        python += [type(op).__name__ for op in dataset.chain.after]
        return f"{', '.join(python)}: called as it is, in Python" if python else ""
    if not isinstance(dataset, StagedDataset) or getattr(getter(dataset), "__func__", None) is None:
        return "the dataset is not staged, or has a __getitem__ of its own"
    if dataset.decoder is not None:
        return "the dataset has a decoder of its own"
    python = [op.name for op in dataset.chain.ops if calls(op)]
    if python:
        return f"{', '.join(python)}: a function in Python"
    if not dataset.chain.is_one_program:
        return "the chain makes several images of one"
    return ""


def looked(dataset: Any) -> Look | str:
    """Some samples begun, and whether what becomes of them is all of one size."""
    if not len(dataset):
        return "the dataset is empty"
    sizes, largest = set(), 0
    for at in range(min(LOOKED_AT, len(dataset))):
        begun = dataset.begun(at * len(dataset) // min(LOOKED_AT, len(dataset)))
        sizes.add(program_size(begun.program, begun.image.size))
        largest = max(largest, len(begun.data) + HEAD.size)
    if len(sizes) > 1:
        return "its samples become images of several sizes"
    tail = dataset.chain.tail
    assert tail is not None
    return Look(sizes.pop(), tail, largest)
