"""A dataset whose photos are decoded on the GPU, a batch at a time, and whose other ops run on the CPU by torchvision and Pillow.

It lives in a file of its own: workers that use CUDA are spawned, and import it by name.
"""

from __future__ import annotations

import io
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _gpu_chains import REPEATED, torchvision_chain
from _prepare_subjects import import_torchvision
from PIL import Image


class DecodedOnDevice(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, files: list[str], workload: str, device: str) -> None:
        self.files, self.workload, self.device = files, workload, device

    def __len__(self) -> int:
        return REPEATED

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "workload": self.workload, "device": self.device}

    @cached_property
    def chain(self) -> Any:
        return torchvision_chain(self.workload)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        torch.set_num_threads(1)
        data = [Path(self.files[index % len(self.files)]).read_bytes() for index in indices]
        return [(self.chain(image), 0) for image in self.decoded(data)]

    def decoded(self, data: list[bytes]) -> list[Image.Image]:
        if self.device == "cpu":
            return [with_pillow(each) for each in data]
        coded = import_torchvision().io
        raw = [torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in data]
        try:
            found = coded.decode_jpeg(raw, mode=coded.ImageReadMode.RGB, device=self.device)
        except RuntimeError:  # one of them is no photo for nvJPEG
            return [with_pillow(each) for each in data]
        return [Image.fromarray(np.ascontiguousarray(each.permute(1, 2, 0).cpu().numpy())) for each in found]


def with_pillow(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")
