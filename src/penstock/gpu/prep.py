"""Decide whether the GPU can help with a dataset; if so, build the dataset for workers and the lane.

A reason against is one sentence, for `explain()` and for whoever requested it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import default_collate

from penstock.config import GpuPrep
from penstock.dataset.offers import offered
from penstock.gpu.dataset import SlotDataset
from penstock.gpu.lane import GpuLane
from penstock.gpu.modes import Modes
from penstock.gpu.pending import Station
from penstock.gpu.requests import Requests
from penstock.gpu.residents import Residents
from penstock.gpu.reuse_dataset import ReuseSlotDataset
from penstock.gpu.slots import BESIDE, HEAD_ROOM
from penstock.kernels.forms import supported
from penstock.pipeline.adopt import AdoptedFolder
from penstock.pipeline.annotated import AnnotatedDataset
from penstock.pipeline.audio import AudioFolder
from penstock.pipeline.begun import Begun
from penstock.pipeline.chain import calls, opening, size_of
from penstock.pipeline.staged import StagedDataset
from penstock.policy.sharing import Memory
from penstock.reuse.begun import ReuseBegun
from penstock.reuse.images import Reused
from penstock.reuse.on_device import ReusedOnDevice
from penstock.transforms.steps import Code, Size, program_size
from penstock.transforms.tail import Tail
from penstock.transforms.windows import Window

LOOKED_AT = 64
"""Samples whose programs are examined first."""
ROOM_MOST = 4
ROOM_MOST_KEPT = 8
ROOM_LEAST = 64 << 10
"""Slots fit every examined sample, as file and as pixels, but have at most this multiple of the pixels, or this size if that is more. Workers
prepare what does not fit. Samples stored on the device travel whole, once: larger slots pay for them."""
DETERMINISTIC_SHARE = 0.5
"""Share of samples the GPU prepares if that may not depend on timing."""


class Look(NamedTuple):
    """What the examined samples show."""

    size: Size
    tail: Tail
    room: int


class Prep(NamedTuple):
    dataset: SlotDataset
    lane: GpuLane
    key: tuple[Any, ...]
    """What the lane was made for."""
    identity: tuple[Any, ...]
    """Of the examined dataset."""
    look: Look


def planned(
    dataset: Any,
    collate_fn: Any,
    stations: Callable[[Look], Sequence[Station]] | None,
    device: torch.device,
    *,
    wanted: GpuPrep,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format | None,
    deterministic: bool = False,
    memory: Callable[[], Memory] | None = None,
    allocate: Callable[[int], torch.Tensor] | None = None,
    kept: Prep | None = None,
) -> Prep | str:
    """Return the dataset and the lane, or why the GPU cannot help. Without `stations` the device only scales and normalises. `kept`: an earlier
    epoch's lane, reused with all it has learned if it fits. `allocate`: returns spare device memory for stored samples."""
    reason = unsuited(dataset, collate_fn)
    if reason:
        return reason
    identity = identity_of(dataset)
    fixed, finishes = wanted.share, wanted.finish
    drawn = deterministic or wanted.choice == "random"
    if stations is None:
        fixed, finishes = 0.0, False
    elif deterministic and fixed is None:
        fixed = DETERMINISTIC_SHARE
    files = fixed is None and not drawn
    look = (
        kept.look if kept is not None and kept.identity == identity else looked(dataset, kept_as_files=files)
    )
    if isinstance(look, str):
        return look
    on_device = dataset if isinstance(dataset, ReusedOnDevice) and stations is not None else None
    if on_device is not None:
        finishes = True  # nobody else can finish resident samples
    store = None if on_device is None else on_device.store
    key = (look.size, look.tail.identity(), device, dtype, memory_format, wanted, deterministic, store)
    if kept is not None and kept.key == key and kept.lane.is_free:
        requests, lane = kept.dataset.requests, kept.lane
    else:
        requests = Requests()
        # Resident samples must be finished on the device.
        nothing_to_try = fixed is not None or on_device is not None
        mode = "concurrent" if wanted.mode == "auto" and nothing_to_try else wanted.mode
        auto = wanted.mode == "auto"
        modes = Modes(mode, fixed_share=fixed, finishes=finishes, memory=memory, borrows_cores=auto)
        made = [] if stations is None else stations(look)
        residents = None
        if on_device is not None:
            residents = Residents(
                on_device.store,
                on_device.again,
                allocate or partial(torch.empty, dtype=torch.uint8, device=device),
            )
        lane = GpuLane(
            look.tail, look.size, device, made, requests, modes, dtype=dtype, memory_format=memory_format, residents=residents
        )  # fmt: skip
    times = ROOM_MOST if on_device is None else ROOM_MOST_KEPT
    most = max(ROOM_LEAST, times * 3 * look.size[0] * look.size[1])
    room = 0 if stations is None else min(look.room, most)
    # A place on the device is given once: preparing a sample again gives another.
    repeatable = store is None and (stations is None or fixed in (0.0, 1.0) or (drawn and fixed is not None))
    kind = ReuseSlotDataset if isinstance(dataset, Reused) else SlotDataset
    slots = kind(dataset, look.size, requests=requests, room=room, drawn=drawn, repeatable=repeatable)
    return Prep(slots, lane, key, identity, look)


def identity_of(dataset: Any) -> tuple[Any, ...]:
    """Return a key that is equal if dataset and chain are those of the last epoch."""
    users = offered(dataset).shown
    if isinstance(dataset, StagedDataset):
        return id(users), len(dataset), dataset.chain.identity
    return id(users), len(dataset), id(getattr(users, "transform", None))


def unsuited(dataset: Any, collate_fn: Any) -> str:
    """Return why a dataset is unsuited; "" if it is not."""
    if collate_fn is not default_collate:
        return "the batch is made by a collate function of yours"
    if isinstance(dataset, AdoptedFolder):
        python = [type(op).__name__ for op, draw in dataset.chain.ops if draw is None]
        python += [type(op).__name__ for op in dataset.chain.after]
        return f"{', '.join(python)}: called as it is, in Python" if python else ""
    if isinstance(dataset, AudioFolder):
        return "recordings are prepared by the CPU"
    if isinstance(dataset, AnnotatedDataset):
        return "masks and boxes are prepared by the CPU, together with their image"
    if not isinstance(dataset, StagedDataset):
        return f"{type(dataset).__name__} is not staged: it does not show how its samples are prepared"
    if dataset.has_own_items:
        return f"{type(dataset).__name__} has a __getitem__ of its own"
    if dataset.decoder is not None:
        return "the dataset has a decoder of its own"
    python = [op.name for op in dataset.chain.ops if calls(op)]
    if python:
        return f"{', '.join(python)}: a function in Python"
    if not dataset.chain.is_one_program:
        return "the chain makes several images of one"
    if dataset.after:
        names = ", ".join(type(function).__name__ for function in dataset.after)
        return f"{names}: called as it is, in Python"
    return ""


def looked(dataset: Any, *, kept_as_files: bool = True) -> Look | str:
    """Examine some samples: do all results have one size, and can the kernels make them? Must not depend on the store's content. `kept_as_files`:
    samples to be stored may still leave as files."""
    if not len(dataset):
        return "the dataset is empty"
    sizes, needs, reasons = set(), [], []
    for at in range(min(LOOKED_AT, len(dataset))):
        try:
            begin = dataset.unfound if isinstance(dataset, Reused) else dataset.begun
            begun: Begun = begin(at * len(dataset) // min(LOOKED_AT, len(dataset)))
        except Exception:  # noqa: BLE001, S112 - whoever prepares it will say so
            continue
        size, program, file = size_of(begun.image), begun.program, len(begun.data)
        to_keep = isinstance(begun, ReuseBegun) and begun.to_keep is not None
        if to_keep:  # workers do its first steps
            program = program[len(begun.first) :]
            size, file = program_size(begun.first, size), file if kept_as_files else 0
        opens_with = opening(program, size) or Window.whole(size)
        if to_keep and isinstance(dataset, ReusedOnDevice):  # it goes there whole
            opens_with = Window.whole(size)
        image = max(file, 3 * opens_with.height * opens_with.width)
        sizes.add(program_size(program, size))
        needs.append(HEAD_ROOM + image + BESIDE)
        reasons += [why for why in map(supported, program) if why][:1]
        if any(step.code is Code.GRAY and step.args[0] != 3 for step in begun.program):
            return "its samples become grey images"
    if not needs:
        return "none of the samples that were looked at can be read"
    if len(sizes) > 1:
        return "its samples become images of several sizes"
    if len(reasons) == len(needs):
        return reasons[0]
    tail = dataset.chain.tail
    assert tail is not None
    return Look(sizes.pop(), tail, max(needs))
