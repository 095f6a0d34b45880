"""The dataset workers see if a GPU helps: they prepare samples as far as requested (`gpu.requests`) and leave the rest to it.

A worker reads and draws a sample; then it goes one of three ways:
- The most expensive leave as files, while few enough are in flight. The GPU decodes them.
- For others the worker decodes what the program needs, and leaves the steps to the GPU's kernels, if requested.
- Otherwise, or if a sample does not fit or has a step without a kernel, the worker prepares it whole.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.dataset.offers import Offer, Offers, offered
from penstock.dataset.seeding import call_seed, company
from penstock.dataset.unfinished import Unfinished, finished
from penstock.gpu.requests import AS_THERE_IS_ROOM, Requests
from penstock.gpu.slots import (
    BESIDE,
    DECODED,
    ENCODED,
    HEAD_ROOM,
    Packing,
    slot_bytes,
    write_head,
    write_pixels,
)
from penstock.kernels.layout import interleaved, lay_out
from penstock.pipeline.begun import Begun
from penstock.pipeline.chain import executed, opened, opening, shape_of, size_of
from penstock.pipeline.decode import Encoded
from penstock.pipeline.deferred import Deferred
from penstock.pipeline.header import BadImage
from penstock.pipeline.staged import StagedDataset
from penstock.policy.costs import Line
from penstock.policy.dearest import Dearest, Ranks
from penstock.transforms.cpu import execute
from penstock.transforms.steps import Program, Size, program_size
from penstock.transforms.windows import Window

BASELINE = 0xC0
END = b"\xff\xd9"
TRAILER = 1024
"""Bytes that may follow the end of an image in its file."""
IMAGE_BYTES, SCRATCH_BYTES = 48 << 20, 48 << 20
"""Limits of a task's decoded images, and of its scratch: workers prepare samples that need more."""
OBSERVED = 4
"""One sample in this many is measured: measuring costs too, and costs are learned over time."""


class AsSlot:
    """Output form of deferred samples (`pipeline.deferred`): uint8 pixels in slots; the device converts them to floats."""

    dtype, by_parts, numbers, divides = torch.uint8, True, 0, False

    def __init__(self, size: Size, slot: int) -> None:
        self._size, self._slot = size, slot

    def check(self, size: Size, channels: int = 3) -> None:
        """Raise if the size or channels differ from other samples'."""
        if size != self._size:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got [3, {self._size[0]}, {self._size[1]}] in other samples and "
                f"[3, {size[0]}, {size[1]}] here"
            )
        if channels != 3:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but a sample has {channels} channels where others have 3"
            )

    def shape(self, begun: Begun) -> tuple[int, ...]:
        channels, *size = shape_of(begun.image, begun.program)
        self.check((size[0], size[1]), channels)
        return (self._slot,)

    def begin(self, slot: torch.Tensor) -> int:
        write_head(self._size, Requests.entry_of(company()), slot)
        return slot.data_ptr() + HEAD_ROOM

    def write(self, pixels: Any, slot: torch.Tensor) -> None:
        self.check(pixels.shape[:2], pixels.shape[2])
        write_pixels(pixels, Requests.entry_of(company()), slot)


class SlotDataset(Offers):
    """A dataset of (slot, target)."""

    def __init__(
        self,
        source: Any,
        size: tuple[int, int],
        *,
        requests: Requests,
        room: int,
        drawn: bool = False,
        repeatable: bool = False,
    ) -> None:
        """`room`: bytes of a sample left to the GPU. `drawn`: who prepares a sample must not depend on earlier ones. `repeatable`: nor on anything
        else that changes."""
        self._source, self._size, self.requests = source, size, requests
        self._slot = slot_bytes(size, room)
        self._form, self._without_lane = AsSlot(size, self._slot), not room
        self._drawn, self._repeatable = drawn, repeatable
        self._costs, self._dearest, self._ranks, self._count = Line(), Dearest(), Ranks(), 0

    def offer(self) -> Offer:
        return replace(
            offered(self._source),
            get=self._unfinished,
            drawn_first=self._deferred,
            sample_bytes=self._slot,
            repeatable=self._repeatable,
            tail=None,  # the card does it
        )

    def _deferred(self) -> Deferred | None:
        """Return the deferred form if the GPU only normalises: then there is only one way to prepare a sample."""
        staged = self._without_lane and isinstance(self._source, StagedDataset)
        return self._source.deferred(self._form) if staged else None

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        return finished(self._unfinished(index))

    def _unfinished(self, index: int) -> tuple[Unfinished, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        begun: Begun | None = None
        try:
            begun = self._source.begun(index)
            self._form.check(program_size(begun.program, size_of(begun.image)))
            write = self._encoded(begun) if self._is_left_encoded(begun) else None
            write = write or self._worked_on(begun)
        except BadImage as exc:
            if begun is None or not hasattr(self._source, "forgiven"):
                if hasattr(self._source, "name"):
                    exc.add_note(f"penstock: {self._source.name(index % len(self))}")
                raise
            write = self._finished(execute(begun.program, self._source.forgiven(index)))
        return Unfinished(torch.uint8, (self._slot,), write), begun.target

    def _finished(self, pixels: Any) -> Any:
        """Return the writer of finished pixels; raise if their shape does not fit the batch."""
        self._form.check(pixels.shape[:2], pixels.shape[2])
        return partial(write_pixels, pixels, Requests.entry_of(company()))

    def _is_left_encoded(self, begun: Begun) -> bool:
        """Return whether a sample is among the most expensive the GPU can take, and there is room for it."""
        share, limit = self.requests.share, self.requests.limit
        if not isinstance(begun.image, Encoded) or not (limit if share == AS_THERE_IS_ROOM else share):
            return False
        if not self._may_leave(begun, share):
            return False
        if HEAD_ROOM + len(begun.data) + BESIDE > self._slot or not is_plain(begun):
            self._dearest.passes(max(0.0, share))
            return False
        by_room = share == AS_THERE_IS_ROOM
        room, dear = (self.requests.has_room(), self.requests.dear) if by_room else (True, share)
        if self._drawn:
            return call_seed("lane") < dear * 2.0**64 and room
        choose = self._ranks.is_dear if by_room else self._dearest.takes
        return choose(self._cost(begun), dear) and room

    def _cost(self, begun: Begun) -> float:
        return self._costs.predict(features(begun)) if self._costs.count else 0.0

    def _worked_on(self, begun: Begun) -> Any:
        """Return the writer of a sample prepared here, as far as requested."""
        self._count += 1
        if self._count % OBSERVED or not isinstance(begun.image, Encoded):
            return self._here(begun)
        started = time.thread_time()
        write = self._here(begun)
        self._costs.observe(features(begun), time.thread_time() - started)
        return write

    def _may_leave(self, begun: Begun, share: float) -> bool:  # noqa: ARG002 - others need them
        return True

    def _here(self, begun: Begun) -> Any:
        return self._prepared(begun)

    def _prepared(self, begun: Begun) -> Any:
        """Decode and leave the steps to the kernels, or prepare the sample whole."""
        if self.requests.finishes:
            return self._decoded(*opened(begun.program, begun.image))
        return self._finished(executed(begun.program, begun.image))

    def _decoded(self, program: Program, pixels: Any) -> Any:
        """Leave decoded pixels to the kernels; finish them here if they do not fit or a step has no kernel."""
        write = None
        if pixels.shape[2] == 3:
            write = self._fitting(DECODED, pixels, pixels.shape[:2], program, interleaved)
        return write or self._finished(execute(program, pixels))

    def _encoded(self, begun: Begun) -> Any:
        data = np.frombuffer(begun.data, np.uint8)
        write = self._fitting(ENCODED, data, begun.image.size, begun.program, None)
        if write is not None:
            self.requests.left(Requests.entry_of(company()))
        return write

    def _fitting(self, form: int, image: Any, size: Any, program: Any, strides: Any) -> Any:
        """Return the writer of a sample for the GPU; None if a step has no kernel or there is no room."""
        packing = self._packed(form, image, size, program, strides)
        return None if packing is None else packing.write

    def _packed(self, form: int, image: Any, size: Any, program: Any, strides: Any) -> Packing | None:
        try:
            layout = lay_out(program, size, None if strides is None else strides(size))
        except ValueError:  # a step without a kernel
            return None
        if layout.scratch_bytes > SCRATCH_BYTES:
            return None
        packing = Packing.of(form, image, size, layout, program, Requests.entry_of(company()))
        return packing if packing.nbytes <= self._slot else None


def is_plain(begun: Begun) -> bool:
    """Return whether the card's decoder supports the file and the file is complete: it does not report truncation."""
    header = begun.image.header
    return (
        header.frame == BASELINE
        and header.channels == 3
        and 3 * header.pixels <= IMAGE_BYTES
        and END in begun.data[-TRAILER:]
    )


def features(begun: Begun) -> tuple[float, ...]:
    """Return what a sample's cost grows with: its bytes, and its decoded area."""
    part = opening(begun.first, begun.image.size) or Window.whole(begun.image.size)
    return float(len(begun.data)), float(part.height * part.width)
