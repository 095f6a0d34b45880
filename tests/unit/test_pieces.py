"""A sample taken apart: what is measured is what was predicted, piece by piece, and no more is counted than is done."""

from __future__ import annotations

import io
import statistics
from typing import Any

import numpy as np
import pytest
import torch

from penstock import StagedDataset
from penstock import transforms as T
from penstock.pipeline.header import read_header
from penstock.pipeline.pieces import (
    Piece,
    ahead,
    features_of,
    kind_of,
    observe,
    pieces_of,
    predicted,
    work_of,
)
from penstock.policy.costs import CostModel
from penstock.transforms.augment import steps_of
from penstock.transforms.steps import Code, Step
from penstock.transforms.windows import stages

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


def dataset(chain: str, scale: int = 1) -> StagedDataset:
    return StagedDataset(lambda index: (photo(index, scale), index), CHAINS[chain], 40)


def measured(samples: StagedDataset, index: int) -> list[Piece]:
    return [piece for piece in pieces_of(samples, index) if piece.kind]


def drawn(samples: StagedDataset, index: int) -> tuple[Any, bytes, Any]:
    data, _ = samples.read(index)
    header = read_header(data)
    return header, data, samples.chain.draw(index, (header.height, header.width))


@each_chain
def test_what_is_measured_is_what_was_said_ahead(chain: str) -> None:
    samples = dataset(chain)
    for index in range(40):
        said = ahead(*drawn(samples, index))
        assert [(piece.kind, piece.features) for piece in measured(samples, index)] == said
        assert all(piece.seconds >= 0 for piece in measured(samples, index))


def test_files_that_are_read_in_part_are_measured_as_they_are_read() -> None:
    crop = [T.RandomResizedCrop(20, scale=(0.3, 1.0)), *TAIL]
    samples = StagedDataset(lambda index: (photo(index, 2), index), crop, 40, fast_decode=True)
    kinds = set()
    for index in range(40):
        said = ahead(*drawn(samples, index), fast=True)
        assert [(piece.kind, piece.features) for piece in measured(samples, index)] == said
        kinds.add(said[1][0])
    assert {"decode jpeg", "decode jpeg at 1/2", "decode jpeg at 1/4"} <= kinds


@each_chain
def test_a_sample_is_predicted_once_all_its_pieces_are_known(chain: str) -> None:
    samples, model = dataset(chain), CostModel()
    assert predicted(model, *drawn(samples, 0)) is None
    for index in range(40):
        observe(model, [piece._replace(seconds=2.0) for piece in measured(samples, index)])
        pieces = measured(samples, index)
        assert predicted(model, *drawn(samples, index)) == pytest.approx(2.0 * len(pieces), rel=0.01)


def test_costs_that_lie_on_lines_are_predicted_for_photos_never_seen() -> None:
    def cost(piece: Piece) -> float:
        """A start of its own for each kind, and so much for each pixel or byte."""
        return 1e-5 * len(piece.kind) + 2e-9 * sum(piece.features)

    samples, model = dataset("whole images", 3), CostModel()
    for index in range(200):
        observe(model, [piece._replace(seconds=cost(piece)) for piece in measured(samples, index)])
    errors = []
    for index in range(200, 260):
        expected = sum(cost(piece) for piece in measured(samples, index))
        guess = predicted(model, *drawn(samples, index))
        if guess is not None:
            errors.append(abs(guess - expected) / expected)
    assert len(errors) == 60
    assert statistics.median(errors) < 0.02


def test_real_costs_are_predicted_within_a_factor() -> None:
    """On a machine that does other things as well, no more can be asked."""
    small, large, model = dataset("cropped first"), dataset("cropped first", 6), CostModel()
    for index in range(40):
        for samples in (small, large):
            observe(model, measured(samples, index))
    taken, guessed = ({"small": 0.0, "large": 0.0} for _ in range(2))
    for index in range(20):
        for name, samples in (("small", small), ("large", large)):
            taken[name] += statistics.median(
                sum(piece.seconds for piece in measured(samples, index)) for _ in range(3)
            )
            guessed[name] += predicted(model, *drawn(samples, index)) or 0.0
    assert guessed["large"] > 1.5 * guessed["small"]
    for name in taken:
        assert 0.4 < guessed[name] / taken[name] < 2.5


def test_tables_in_a_row_are_one_piece() -> None:
    program = [
        Step(Code.CONTRAST, (1.5,)),
        Step(Code.SOLARIZE, (99.0,)),
        Step(Code.INVERT),
        Step(Code.FLIP_H),
        Step(Code.INVERT),
    ]
    found = [(work.start, work.stop, work.kind) for work in work_of(program, stages(program, (9, 9)))]
    assert found == [(0, 3, "CONTRAST"), (3, 4, "FLIP_H"), (4, 5, "INVERT")]


def test_steps_done_by_different_code_are_different_kinds() -> None:
    moved, turned, sheared = (
        steps_of(name, 0.2, (40, 40), 0, None)[0] for name in ("TranslateX", "Rotate", "ShearY")
    )
    smooth = steps_of("Rotate", 10.0, (40, 40), 2, None)[0]
    assert kind_of(turned) == kind_of(sheared) == "AFFINE turned nearest"
    assert len({kind_of(moved), kind_of(turned), kind_of(smooth)}) == 3
    assert kind_of(Step(Code.RESIZE, (9, 9, 2, True))) != kind_of(Step(Code.RESIZE, (9, 9, 2, False)))


def test_only_pixels_that_are_needed_count() -> None:
    program = [Step(Code.BRIGHTNESS, (1.2,)), Step(Code.EQUALIZE), Step(Code.CROP, (5, 5, 10, 20))]
    plan = stages(program, (100, 100))
    assert [features_of(step, plan[at], plan[at + 1]) for at, step in enumerate(program)] == [
        (10_000.0,),
        (10_000.0, 200.0),
        (200.0,),
    ]
    plan = stages(program[::2], (100, 100))
    assert features_of(program[0], plan[0], plan[1]) == (200.0,)
    program = [Step(Code.SHARPNESS, (1.5,)), Step(Code.CROP, (5, 5, 10, 20))]
    plan = stages(program, (100, 100))
    assert features_of(program[0], plan[0], plan[1]) == (12.0 * 22.0,), "its neighbours are needed too"
