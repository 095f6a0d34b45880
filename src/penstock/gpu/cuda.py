"""Stations (GPU worker threads) on a CUDA device: nvJPEG decodes files, kernels execute the programs, each station on its own stream.

Rule 1: a station allocates all its memory when it gets ready; afterwards nothing on the device. Only nvJPEG allocates more for the files it
        meets, up to a budget.
Rule 2: take only memory that nobody holds, and leave some of it: torch would otherwise release what training will need again. If there is too
        little, a station shrinks, then it does not help.
Rule 3: samples resident on the device are read in place; their memory is allocated in the same way, once.
Rule 4: the CPU makes a sample that cannot be made here, in this thread: the CPU's decoder decides whether a file is valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.config import GpuPrep
from penstock.errors import DeviceLost, PenstockError
from penstock.gpu.dataset import IMAGE_BYTES, SCRATCH_BYTES
from penstock.gpu.nvjpeg import DEFAULT, ENGINES, LEFT_BYTES, NO_PIPELINE, DecodeError, Decoder
from penstock.gpu.prep import Look, Prep, planned
from penstock.gpu.residents import Residents
from penstock.gpu.slots import ENCODED, Contents, GpuSample, StationRoom, StationTask, left, padded, tasks_of
from penstock.kernels.run import Executor, Limits, TaskTooLarge, shapes
from penstock.measure.card import Spare
from penstock.pipeline.decode import decode
from penstock.policy.sharing import Memory
from penstock.transforms.cpu import execute

Addresses = NDArray[np.int64]
STATIONS = 2
"""Threads: while one waits for the device, the other has the next task ready."""
FIRST_OF_ALL = -5
"""The highest stream priority: a station's kernels are short, and wait for training's anyway."""
ROUNDS = range(1, 9)
"""Rounds whose launches are captured ahead: chains with two drawn ops have up to 7."""
SMALLEST = 32
"""Rows of the smallest captured tasks; smaller ones are launched kernel by kernel."""
MARGIN = 0.03
"""Share of device memory left free: stored samples keep theirs, and an evaluation, say, may need more than training has shown."""
TRIES = 3
"""Halvings of its memory that a station tries before it gives up."""
ROWS = 128
"""Rows of a task of decoded samples: one for each, five where images are mixed."""


def prep_for(
    dataset: Any,
    collate_fn: Any,
    device: torch.device,
    *,
    wanted: GpuPrep,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format | None,
    deterministic: bool,
    kept: Prep | None = None,
) -> Prep | str:
    """Return the dataset for workers and the lane; or why the GPU cannot help."""

    def stations(look: Look) -> Sequence[CudaStation]:
        like = torch.empty(
            (1, 3, *look.size), dtype=dtype or look.tail.dtype, device=device, memory_format=memory_format or torch.contiguous_format
        )  # fmt: skip
        return [CudaStation(look, like, task=wanted.task) for _ in range(STATIONS)]

    return planned(
        dataset,
        collate_fn,
        None if wanted.mode == "off" else stations,
        device,
        wanted=wanted,
        dtype=dtype,
        memory_format=memory_format,
        deterministic=deterministic,
        memory=partial(memory_of, device),
        allocate=partial(spare_memory, device, Spare(device)),
        kept=kept,
    )


def memory_of(device: torch.device) -> Memory:
    """Report device memory. Stations hold theirs already: what counts is whether training has come near the limit."""
    return Memory(torch.cuda.max_memory_allocated(device), 0, torch.cuda.mem_get_info(device)[1])


def spare_memory(device: torch.device, spare: Spare, size: int) -> torch.Tensor:
    """Allocate `size` bytes, if training can do without them."""
    total = torch.cuda.mem_get_info(device)[1]
    if not spare.has(size + int(MARGIN * total) + LEFT_BYTES):
        raise torch.cuda.OutOfMemoryError("training needs it")
    # On the stream of batches it could be given their memory.
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        found = torch.empty(size, dtype=torch.uint8, device=device)
    stream.synchronize()  # its memory may still be in use on this stream
    return found


class CudaStation:
    """Decodes and executes, task by task."""

    def __init__(self, look: Look, like: torch.Tensor, *, task: int) -> None:
        self._tail, self._like, self._spare = look.tail, like, Spare(like.device)
        self._room = StationRoom(task, max(task, ROWS), IMAGE_BYTES, SCRATCH_BYTES)
        self._stream: Any = None
        self._done: Any = None
        self._images: Any = None
        self._decoder: Decoder | None = None
        self._executor: Executor | None = None
        self.by_cpu = 0
        self.residents: Residents | None = None

    @property
    def held_bytes(self) -> int:
        if self._executor is None or self._decoder is None:
            return 0
        return int(self._images.nbytes + self._executor.static_bytes + self._decoder.held_bytes)

    def prepare(self) -> str:
        if not self._like.is_cuda:
            return ""
        self._stream = torch.cuda.Stream(self._like.device, priority=FIRST_OF_ALL)  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.device(self._like.device), torch.cuda.stream(self._stream):
            reason = ""
            for _ in range(TRIES):
                try:
                    self._build()
                except torch.cuda.OutOfMemoryError as exc:
                    self.close()
                    files, rows, image_bytes, scratch_bytes = self._room
                    self._room = StationRoom(files, rows, image_bytes // 2, scratch_bytes // 2)
                    reason = f"no device memory is left for it ({str(exc).partition('.')[0]})"
                except (PenstockError, DecodeError, RuntimeError) as exc:
                    self.close()
                    return str(exc)
                else:
                    return ""
        return reason

    def _build(self) -> None:
        files, rows, image_bytes, scratch_bytes = self._room
        if not self._spare.has(image_bytes + scratch_bytes + LEFT_BYTES):
            raise torch.cuda.OutOfMemoryError("training needs it")
        self._images = torch.empty(image_bytes, dtype=torch.uint8, device=self._like.device)
        try:
            self._decoder = Decoder(self._stream, most=files, backend=ENGINES, flags=NO_PIPELINE)
        except DecodeError:  # the card has no JPEG engines
            self._decoder = Decoder(self._stream, most=files, backend=DEFAULT)
        limits = Limits(rows=rows, scratch_bytes=scratch_bytes, table_bytes=rows << 13, slots=4 * rows)
        executor = Executor(self._like, self._tail, limits)
        executor.warm_up(rounds=ROUNDS, rows=[shape for shape in shapes(rows) if shape >= SMALLEST])
        torch.cuda.current_stream().synchronize()
        self._executor = executor

    def tasks(self, contents: Contents) -> list[StationTask]:
        return tasks_of(contents, self._room)

    def make(self, task: StationTask, out: torch.Tensor, after: Any) -> None:
        if self._stream is None:
            self._whole(task, out)
            return
        try:
            with torch.cuda.device(out.device), torch.cuda.stream(self._stream):
                # Block this thread, not the stream: another station uses the device meanwhile, and the time its part takes shows its cost.
                after.synchronize()
                self._whole(task, out)
        except RuntimeError as exc:
            if not is_lost(exc):
                raise
            raise DeviceLost(
                f"the GPU failed while it prepared samples ({exc}), and can do nothing more in this process. Start again "
                f"from your last checkpoint; gpu_prep='off' leaves preparation to the CPU."
            ) from exc

    def close(self) -> None:
        if self._decoder is not None:
            self._decoder.close()
        self._executor = self._decoder = self._images = None

    def _finish(self) -> None:
        """Wait for the stream, asleep: spinning would take a core from workers."""
        if self._stream is None:
            return
        self._done.record(self._stream)
        self._done.synchronize()

    def _whole(self, task: StationTask, out: torch.Tensor) -> None:
        """Run a task until the device is done with it."""
        if not task.kept:
            try:
                self._task(task, out)
            finally:
                self._finish()  # also on failure: a part of it may be under way
            return
        assert self.residents is not None
        gone = self.residents.run(task, partial(self._task, task, out), self._finish)
        for ordinal in gone:
            self._by_cpu(task.contents.gpu_sample(ordinal), out)
        if gone:
            self._finish()

    def _task(self, task: StationTask, out: torch.Tensor) -> None:
        """Run a task of files, resident samples or pixels."""
        try:
            if self._executor is None:
                raise TaskTooLarge("there is no executor")
            self._executor.run_rows(task.table(self._images_of(task)), out)
        except (RuntimeError, ValueError) as exc:
            if is_lost(exc):
                raise
            self._smaller(task, out)

    def _images_of(self, task: StationTask) -> Addresses:
        if task.kept:
            assert self.residents is not None
            return self.residents.addresses(task)
        return self._decoded(task) if task.files else self._copied(task)

    def _smaller(self, task: StationTask, out: torch.Tensor) -> None:
        """Run a task in two halves; a single sample on the CPU, whose error counts if it fails too."""
        if len(task.ordinals) > 1 and self._executor is not None:
            for half in task.halves():
                self._task(half, out)
            return
        for sample in task.gpu_samples():
            self._by_cpu(sample, out)

    def _by_cpu(self, sample: GpuSample, out: torch.Tensor) -> None:
        try:
            if sample.form == ENCODED:
                program, image = sample.program, decode(sample.image.tobytes())
            elif sample.place is not None and self.residents is not None:
                program, image = self.residents.left(sample)
            else:
                program, image = left(sample)
        except ValueError as exc:
            exc.add_note(f"penstock: sample {sample.ordinal} of its batch, left to the GPU")
            raise
        self.by_cpu += 1
        out[sample.ordinal].copy_(self._tail.finish(execute(program, image)))

    def _copied(self, task: StationTask) -> Addresses:
        """Copy the slots of a task from the first to the last, in one copy; return the addresses of their pixels."""
        if task.singly:
            return self._copied_singly(task)
        contents, first, last = task.contents, task.ordinals[0], task.ordinals[-1]
        span = contents.slots[first : last + 1].reshape(-1)
        if span.numel() > self._images.nbytes:
            raise TaskTooLarge(f"{span.numel()} bytes of slots; there are {self._images.nbytes}")
        self._images[: span.numel()].copy_(span, non_blocking=True)
        places = np.asarray(task.ordinals) - first
        images: Addresses = self._images.data_ptr() + places * contents.slot + contents.offsets[task.ordinals]
        return images

    def _copied_singly(self, task: StationTask) -> Addresses:
        sizes = padded(task.contents.nbytes[task.ordinals])
        if sizes.sum() > self._images.nbytes:
            raise TaskTooLarge(f"{sizes.sum()} bytes of images; there are {self._images.nbytes}")
        places = np.cumsum(sizes) - sizes
        for ordinal, place in zip(task.ordinals, places.tolist(), strict=True):
            pixels = task.contents.pixels(ordinal)
            self._images[place : place + len(pixels)].copy_(pixels, non_blocking=True)
        images: Addresses = self._images.data_ptr() + places
        return images

    def _decoded(self, task: StationTask) -> Addresses:
        """Decode the files into the station's memory, one behind the other; return the addresses."""
        assert self._decoder is not None
        contents, which = task.contents, task.ordinals
        sizes = contents.pixel_bytes[which]
        if sizes.sum() > self._images.nbytes:
            raise TaskTooLarge(f"{sizes.sum()} bytes of images; there are {self._images.nbytes}")
        images: Addresses = self._images.data_ptr() + np.cumsum(sizes) - sizes
        files = contents.slots.data_ptr() + np.asarray(which) * contents.slot + contents.offsets[which]
        # nvJPEG never returns from a call while its stream still waits for something (13.2, an H200's engines).
        self._finish()
        columns = (files, contents.nbytes[which], images, contents.heights[which], contents.widths[which])
        self._decoder.decode(np.stack(columns, axis=1))
        return images


def is_lost(exc: BaseException) -> bool:
    """Return whether the device is broken for good in this process."""
    return isinstance(exc, torch.AcceleratorError) if hasattr(torch, "AcceleratorError") else False
