"""The lane on a CUDA device: nvJPEG decodes parcels, the kernels execute their programs.

Rule 1: a parcel that cannot be made here is made by the CPU, in this thread: what its file is worth, the CPU's decoder says.
Rule 2: too little memory makes tasks smaller, then leaves them to the CPU; training is never asked for any.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from penstock.gpu.lane import Makes
from penstock.gpu.parcels import Parcel
from penstock.gpu.prep import Look, Prep, planned
from penstock.kernels.run import Executor, Limits, Sample, TaskTooLarge
from penstock.pipeline.decode import decode
from penstock.transforms.cpu import execute
from penstock.transforms.tail import Tail

TASK = 64
"""Parcels that are decoded together: more hold more memory, and are hardly faster."""
LIMITS = Limits(rows=TASK, scratch_bytes=256 << 20, table_bytes=1 << 20)
ROUNDS = range(1, 9)
"""Launches of a task that are captured ahead: those of chains with two drawn ops have up to 7."""


def prep_for(
    dataset: Any,
    collate_fn: Any,
    device: torch.device,
    *,
    helps: bool,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format | None,
    deterministic: bool,
) -> Prep | str:
    """The dataset for workers and the lane; where it `helps`, with parcels."""
    makes = partial(maker_for, device=device) if helps else None
    return planned(
        dataset,
        collate_fn,
        makes,
        device,
        dtype=dtype,
        memory_format=memory_format,
        deterministic=deterministic,
    )


def maker_for(look: Look, *, device: torch.device) -> Makes | str:
    for module in ("triton", "torchvision"):
        if importlib.util.find_spec(module) is None:
            return f"it needs {module}: pip install 'penstock[gpu]'"
    return CudaMaker(look.tail, device)


class CudaMaker:
    """Decodes and executes, task by task, on the current stream."""

    def __init__(self, tail: Tail, device: torch.device) -> None:
        self._tail, self._device = tail, device
        self._executor: Executor | None = None
        self.by_cpu = 0
        """Parcels that the CPU had to make after all."""

    def __call__(self, parcels: Sequence[Parcel], out: torch.Tensor) -> None:
        for start in range(0, len(parcels), TASK):
            self._task(parcels[start : start + TASK], out)

    def _task(self, parcels: Sequence[Parcel], out: torch.Tensor) -> None:
        try:
            images = self._decoded(parcels)
            samples = [
                Sample(parcel.layout, image, parcel.ordinal)
                for parcel, image in zip(parcels, images, strict=True)
            ]
            self._ready(out).run(samples, out)
        except (TaskTooLarge, torch.cuda.OutOfMemoryError, RuntimeError, ValueError) as exc:
            if is_sticky(exc):
                raise
            self._smaller(parcels, out)

    def _smaller(self, parcels: Sequence[Parcel], out: torch.Tensor) -> None:
        """In two halves; one alone by the CPU, whose error counts if it has one too."""
        if len(parcels) > 1:
            half = len(parcels) // 2
            self._task(parcels[:half], out)
            self._task(parcels[half:], out)
            return
        (parcel,) = parcels
        pixels = execute(parcel.program, decode(parcel.data.numpy().tobytes()))
        self.by_cpu += 1
        out[parcel.ordinal].copy_(self._tail.finish(pixels))

    def _decoded(self, parcels: Sequence[Parcel]) -> list[torch.Tensor]:
        from torchvision.io import ImageReadMode, decode_jpeg

        images: list[torch.Tensor] = decode_jpeg(
            [parcel.data for parcel in parcels], ImageReadMode.RGB, device=self._device
        )
        return images

    def _ready(self, out: torch.Tensor) -> Executor:
        """The executor for batches like this one, warmed up."""
        if self._executor is None or out.stride()[1:] != self._executor.strides:
            self._executor = Executor(out, self._tail, LIMITS)
            self._executor.warm_up(rounds=ROUNDS, rows=[TASK])
        return self._executor


def is_sticky(exc: BaseException) -> bool:
    """Whether the device is broken for good: nothing more can be done in this process."""
    return isinstance(exc, torch.AcceleratorError) if hasattr(torch, "AcceleratorError") else False
