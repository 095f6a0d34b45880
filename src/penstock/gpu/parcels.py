"""Samples that two lanes share: each leaves its worker as pixels, or as a parcel, the bytes and the program that a GPU makes them of.

A worker reads, draws and predicts what the pixels will cost; the dearest share of them it packs, the rest it prepares. Both have a
place in the batch: the image's slot holds pixels, the record's slot a parcel, and one of them is left as it is. How large the
share is, the training process decides from batch to batch, and says so in a number that all workers see.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from penstock.kernels.layout import Layout, lay_out
from penstock.lanes.pickles import dumps, loads
from penstock.lanes.seeding import call_seed
from penstock.lanes.unfinished import Unfinished, finished
from penstock.pipeline.chain import executed
from penstock.pipeline.staged import Begun
from penstock.policy.costs import Line
from penstock.policy.dearest import Dearest
from penstock.transforms.steps import Code, Program, Step
from penstock.transforms.tail import Tail
from penstock.transforms.windows import stages

HEAD = struct.Struct("<ii")
"""Bytes of the encoded image (0: this sample has pixels), bytes of its program."""
OBSERVED = 4
"""Of so many samples one is measured: what a sample costs is learned in time, and measuring costs too."""


class SharedNumber:
    """A float that one process writes and its workers read, forked or spawned."""

    def __init__(self, value: float = 0.0) -> None:
        self._fd = os.memfd_create("penstock share")
        os.ftruncate(self._fd, mmap.PAGESIZE)
        self._map = mmap.mmap(self._fd, mmap.PAGESIZE)
        self.set(value)

    def get(self) -> float:
        value: float = struct.unpack_from("<d", self._map)[0]
        return value

    def set(self, value: float) -> None:
        struct.pack_into("<d", self._map, 0, value)

    def __getstate__(self) -> tuple[int, int]:
        return os.getpid(), self._fd

    def __setstate__(self, state: tuple[int, int]) -> None:
        pid, fd = state
        self._fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self._fd, mmap.PAGESIZE)

    def close(self) -> None:
        self._map.close()
        os.close(self._fd)


class Parcels:
    """A dataset of (pixels, target, record), of which either the pixels or the record are written."""

    def __init__(
        self,
        source: Any,
        size: tuple[int, int],
        *,
        share: SharedNumber,
        room: int,
        deterministic: bool = False,
    ) -> None:
        self.users_dataset = getattr(source, "users_dataset", source)
        self._source, self._size, self.share, self._room = source, size, share, room
        self._deterministic = deterministic
        self._costs, self._dearest, self._count = Line(), Dearest(), 0

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        return finished(self._penstock_unfinished(index))

    def _penstock_unfinished(self, index: int) -> tuple[Unfinished, Any, Unfinished]:
        begun = self._source.begun(index)
        work = features(begun)
        parcel = self._packed(begun) if self._is_the_gpus(work) else None
        if parcel is not None:
            return nothing((3, *self._size)), begun.target, written(parcel, self._room)
        self._count += 1
        started = time.thread_time()
        pixels = executed(begun.program, begun.image)
        if self._count % OBSERVED == 0:
            self._costs.observe(work, time.thread_time() - started)
        planes = Unfinished(torch.uint8, (3, *pixels.shape[:2]), lambda out: Tail().finish(pixels, out))
        return planes, begun.target, written(HEAD.pack(0, 0), self._room)

    def _is_the_gpus(self, work: tuple[float, ...]) -> bool:
        """Whether a sample is among the dearest; where it must not depend on what came before it, it is drawn."""
        share = self.share.get()
        if self._deterministic:
            return call_seed("lane") < share * 2.0**64
        return self._dearest.takes(self._costs.predict(work) if self._costs.count else 0.0, share)

    def _packed(self, begun: Begun) -> bytes | None:
        """A sample as a parcel, if that is possible and there is room."""
        if begun.image.header.format != "jpeg":
            return None
        try:
            layout = lay_out(begun.program, begun.image.size)
        except ValueError:  # a step that has no kernel
            return None
        program = dumps((tuple(layout), [(int(code), args) for code, args in begun.program]))
        if HEAD.size + len(program) + len(begun.data) > self._room:
            return None
        return HEAD.pack(len(begun.data), len(program)) + program + begun.data


def features(begun: Begun) -> tuple[float, ...]:
    """What the cost of a sample's pixels grows with: its bytes, the part that is decoded, and what the steps change."""
    plan = stages(begun.program, begun.image.size)
    changed = sum(stage.window.height * stage.window.width for stage in plan[1:])
    return float(len(begun.data)), float(plan[0].window.height * plan[0].window.width), float(changed)


def nothing(shape: tuple[int, ...]) -> Unfinished:
    """A place in the batch that is left as it is."""
    return Unfinished(torch.uint8, shape, lambda _: None)


def written(data: bytes, room: int) -> Unfinished:
    def write(out: torch.Tensor) -> None:
        out.numpy()[: len(data)] = memoryview(data)

    return Unfinished(torch.uint8, (room,), write)


class Parcel(NamedTuple):
    """What the GPU lane is given of a sample."""

    ordinal: int
    data: torch.Tensor
    layout: Layout
    """What the kernels do."""
    program: Program
    """The same as steps, for whoever must do it without them."""


def unpacked(records: torch.Tensor) -> Sequence[Parcel]:
    """The parcels in a batch's records; views of them."""
    rows = records.numpy()
    found = []
    for ordinal in range(len(rows)):
        data, program = HEAD.unpack_from(rows[ordinal])
        if data:
            layout, steps = loads(rows[ordinal, HEAD.size : HEAD.size + program].tobytes())
            start = HEAD.size + program
            found.append(
                Parcel(
                    ordinal,
                    records[ordinal, start : start + data],
                    Layout(*layout),
                    [Step(Code(code), args) for code, args in steps],
                )
            )
    return found
