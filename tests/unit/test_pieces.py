"""A sample taken apart: every stage is measured, and its pixels are those that it has at once."""

from __future__ import annotations

import io
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from penstock import StagedDataset
from penstock import transforms as T
from penstock.pipeline.pieces import pieces_in, pieces_of
from penstock.transforms.steps import Code, Step

pytest.importorskip("cv2")
SIZES = [(40, 60), (75, 50), (120, 160), (200, 90)]
TAIL = [T.ToImage(), T.ToDtype(torch.float32, scale=True)]
CHAINS: dict[str, list[Any]] = {
    "none": [],
    "cropped first": [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.RandAugment(3), *TAIL],
    "whole images": [T.TrivialAugmentWide(), T.RandomResizedCrop(32), *TAIL],
    "mixed": [T.Resize(48), T.AugMix(), T.CenterCrop(32), *TAIL],
    "colours": [T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.GaussianBlur(5), T.Pad(3), T.RandomErasing(1.0), *TAIL],
}
each_chain = pytest.mark.parametrize("chain", CHAINS)


def photo(index: int, scale: int = 1) -> bytes:
    from PIL import Image

    height, width = SIZES[index % len(SIZES)]
    pixels = np.random.default_rng(index).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((width * scale, height * scale)).save(out, "JPEG")
    return out.getvalue()


def stages_of(samples: StagedDataset, index: int) -> list[str]:
    found = list(pieces_of(samples, index))
    assert all(piece.seconds >= 0 for piece in found)
    return list(dict.fromkeys(piece.stage for piece in found))


@pytest.mark.parametrize("fast", [False, True])
@each_chain
def test_every_stage_of_a_sample_is_measured(chain: str, fast: bool) -> None:
    samples = StagedDataset(lambda index: (photo(index, 2), index), CHAINS[chain], 40, fast_decode=fast)
    drawn = [str(number) for number in range(len(samples.chain.ops))]
    for index in range(40):
        assert sorted(stages_of(samples, index)) == sorted(["read", "decode", *drawn, "tail"])


@pytest.mark.parametrize("fast", [False, True])
@each_chain
def test_a_sample_in_pieces_has_the_pixels_that_it_has_at_once(chain: str, fast: bool) -> None:
    seen: list[Any] = []

    def noted(image: Any) -> Any:
        seen.append(image.copy())
        return image

    ops = [*(op for op in CHAINS[chain] if op not in TAIL), T.Lambda(noted)]
    samples = StagedDataset(lambda index: (photo(index, 2), index), ops, 40, fast_decode=fast)
    for index in range(40):
        deque(pieces_of(samples, index), maxlen=0)
        samples.chain.pixels(samples.image(photo(index, 2)), index)
        assert np.array_equal(seen[-2], seen[-1])
    assert len(seen) == 80


def test_tables_in_a_row_are_one_piece() -> None:
    program = [
        Step(Code.CONTRAST, (1.5,)),
        Step(Code.SOLARIZE, (99.0,)),
        Step(Code.INVERT),
        Step(Code.FLIP_H),
        Step(Code.INVERT),
    ]
    assert list(pieces_in(program)) == [(0, 3), (3, 4), (4, 5)]
