"""The dataset that workers see where a GPU helps: they prepare samples as far as they are asked to (`gpu.requests`), and leave the rest to it.

A worker reads and draws a sample; then it goes one of three ways:
- The most expensive leave as files, while few enough are on their way. The GPU decodes them.
- Of others the worker decodes what the program needs, and leaves the steps to the GPU's kernels, if asked to.
- Otherwise, or where a sample does not fit or has a step without a kernel, the worker prepares it whole.
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
"""What may stand behind the end of an image in its file."""
IMAGE_BYTES, SCRATCH_BYTES = 48 << 20, 48 << 20
"""Room for the decoded images of a task, and for what its kernels write between passes: a sample that needs more is left to workers."""
OBSERVED = 4
"""Of so many samples one is measured: what a sample costs is learned in time, and measuring costs too."""


class AsSlot:
    """What samples become that are drawn first (`pipeline.deferred`): pixels in slots, which the device makes floats of."""

    dtype, by_parts, numbers, divides = torch.uint8, True, 0, False

    def __init__(self, size: Size, slot: int) -> None:
        self._size, self._slot = size, slot

    def check(self, size: Size, channels: int = 3) -> None:
        """Refuse what does not go with other samples."""
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
        """`room`: bytes of a sample that is left to the GPU. `drawn`: who prepares a sample must not depend on what came before it. `repeatable`: nor on
        anything else that changes."""
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
        )

    def _deferred(self) -> Deferred | None:
        """Where nothing is ever left to the GPU but to normalise: then a sample is prepared in one way only."""
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
        """What writes pixels that are done; of a shape that the batch does not have, an error."""
        self._form.check(pixels.shape[:2], pixels.shape[2])
        return partial(write_pixels, pixels, Requests.entry_of(company()))

    def _is_left_encoded(self, begun: Begun) -> bool:
        """Whether a sample is among the dearest that the GPU can take, and there is room for it."""
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
        """What writes a sample that is prepared here, as far as that is asked for."""
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
        """Decoded and left to the kernels, or prepared whole."""
        if self.requests.finishes:
            return self._decoded(*opened(begun.program, begun.image))
        return self._finished(executed(begun.program, begun.image))

    def _decoded(self, program: Program, pixels: Any) -> Any:
        """What is decoded and does not fit, or has a step without a kernel, is prepared to the end."""
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
        """What writes a sample for the GPU, if the kernels can do its steps and there is room."""
        packing = self._packed(form, image, size, program, strides)
        return None if packing is None else packing.write

    def _packed(self, form: int, image: Any, size: Any, program: Any, strides: Any) -> Packing | None:
        try:
            layout = lay_out(program, size, None if strides is None else strides(size))
        except ValueError:  # a step that has no kernel
            return None
        if layout.scratch_bytes > SCRATCH_BYTES:
            return None
        packing = Packing.of(form, image, size, layout, program, Requests.entry_of(company()))
        return packing if packing.nbytes <= self._slot else None


def is_plain(begun: Begun) -> bool:
    """Whether the card's decoder takes such a file, and the file is whole: what it makes of a part, it does not say."""
    header = begun.image.header
    return (
        header.frame == BASELINE
        and header.channels == 3
        and 3 * header.pixels <= IMAGE_BYTES
        and END in begun.data[-TRAILER:]
    )


def features(begun: Begun) -> tuple[float, ...]:
    """What the cost of a sample's pixels grows with: its bytes, and the part that is decoded."""
    part = opening(begun.first, begun.image.size) or Window.whole(begun.image.size)
    return float(len(begun.data)), float(part.height * part.width)
