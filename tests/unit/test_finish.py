"""Pixels that the CPU prepared, finished on the device: the CPU's own numbers, in any dtype and layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from penstock.kernels.finish import looked_up, normalised
from penstock.transforms.tail import Tail

TAILS = {
    "normalised": Tail(torch.float32, "multiply", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "divided": Tail(torch.float32, "divide", (), ()),
    "unscaled": Tail(torch.float32, "", (120.0, 110.0, 100.0), (60.0, 61.0, 62.0)),
}


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", TAILS)
@pytest.mark.parametrize("finish", [looked_up, normalised])
@pytest.mark.parametrize("in_planes", [True, False])
def test_what_is_finished_here_is_what_the_cpu_makes(
    in_planes: bool, finish: object, name: str, dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (3, 17, 23, 3), np.uint8)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    turned = torch.from_numpy(pixels.transpose(0, 3, 1, 2)).to(device)
    out = torch.empty(turned.shape, dtype=dtype, device=device).to(memory_format=memory_format)
    assert callable(finish)
    finish(TAILS[name], turned.contiguous() if in_planes else turned, out)
    expected = torch.stack([TAILS[name].finish(image) for image in pixels]).to(dtype)
    assert torch.equal(out.cpu(), expected)
