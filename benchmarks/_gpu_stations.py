"""A station of the GPU lane that has no kernels of ours: torchvision's ops on the device, image after image.

It shows what executing whole tasks is worth: all else, decoding, threads, streams and tasks, is the lane's own. Ops draw for themselves,
so that pixels are not those that workers would have made of the sample.

Rule 1: it makes samples of files; what workers have finished needs its tail alone. What they have decoded is refused: that is part of an
        image, for draws that were made already.
Rule 2: an op that fails is an error, and not left to the CPU as the lane would do it: the figures would be of something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from _gpu_chains import LAYERS, SIDE, arranged
from _prepare_subjects import MEAN, STD, import_torchvision

from penstock.gpu import cuda
from penstock.gpu.nvjpeg import DecodeError
from penstock.gpu.prep import Look
from penstock.gpu.slots import ENCODED, FINISHED, Task
from penstock.kernels.run import TaskTooLarge


def device_chain(workload: str, dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """The workload on an image of bytes (3 x height x width), wherever that lies; normalised, and of this type."""
    import_torchvision()
    from torchvision.transforms import v2

    crop = [v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip()]
    augment: dict[str, list[Any]] = {
        "W1": [v2.RandAugment(2, 9)],
        "W3": [v2.RandAugment(2, 9)],
        "AA": [v2.AutoAugment()],
        "DAA": [v2.TrivialAugmentWide() for _ in range(LAYERS)],
    }
    tail = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), v2.ToDtype(dtype)]
    made: Callable[[torch.Tensor], torch.Tensor] = v2.Compose(
        arranged(workload, crop, augment[workload], tail)
    )
    return made


class PerSample(cuda.CudaStation):
    """Decodes task by task, as the lane does, and then takes one image after the other."""

    def __init__(self, look: Look, like: torch.Tensor, *, task: int, workload: str) -> None:
        super().__init__(look, like, task=task)
        self._chain = device_chain(workload, like.dtype)

    def _task(self, task: Task, out: torch.Tensor) -> None:
        forms = set(task.contents.forms[task.ordinals].tolist())
        if forms == {FINISHED}:
            super()._task(task, out)
            return
        if forms != {ENCODED}:
            raise ValueError("torchvision's ops are given files only: use finish=False")
        if self._executor is None:  # it did not get ready
            self._smaller(task, out)
            return
        try:
            images = self._decoded(task)
        except (DecodeError, TaskTooLarge):
            self._smaller(task, out)
            return
        contents = task.contents
        for ordinal, address in zip(task.ordinals, images.tolist(), strict=True):
            size = int(contents.heights[ordinal]), int(contents.widths[ordinal])
            out[ordinal].copy_(self._chain(self._planes(address, size)))

    def _planes(self, address: int, size: tuple[int, int]) -> torch.Tensor:
        """An image where it was decoded to."""
        at = address - self._images.data_ptr()
        planes: torch.Tensor = self._images[at : at + 3 * size[0] * size[1]].view(3, *size)
        return planes


@contextmanager
def per_sample(workload: str) -> Iterator[None]:
    """Iterators that begin meanwhile have lanes with such stations."""
    with patch.object(cuda, "CudaStation", partial(PerSample, workload=workload)):
        yield
