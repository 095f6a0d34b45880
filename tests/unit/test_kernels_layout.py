"""Programs as tables: what is fused, what is refused, how much memory is asked for. Pure."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

from penstock import transforms as v2
from penstock.kernels.forms import LIMITED, supported
from penstock.kernels.layout import lay_out
from penstock.pipeline.chain import Chain
from penstock.transforms.steps import Code, Interpolation, Program, Step

SIZE = (375, 500)
CUT, SMALLER = Step(Code.CROP, (10, 20, 300, 400)), Step(Code.RESIZE, (224, 224, 2, True))
TURN = Step(Code.AFFINE, (0.9, 0.3, 2.0, -0.3, 0.9, 5.0, 0, 7))


@pytest.mark.parametrize(
    ("program", "rounds"),
    [
        ([], 1),
        ([CUT, Step(Code.FLIP_H)], 1),
        ([CUT, SMALLER], 2),
        ([CUT, SMALLER, Step(Code.FLIP_H), TURN, Step(Code.INVERT), TURN, Step(Code.SATURATION, (1.5,))], 2),
        ([CUT, SMALLER, Step(Code.EQUALIZE), Step(Code.SOLARIZE, (99.0,))], 3),
        ([CUT, SMALLER, Step(Code.EQUALIZE), Step(Code.CONTRAST, (1.1,))], 4),
        ([CUT, SMALLER, Step(Code.SHARPNESS, (1.1,)), TURN], 3),
        ([Step(Code.EQUALIZE), TURN, CUT, SMALLER], 4),
        ([Step(Code.RESIZE, (375, 224, 2, True))], 1),
        ([Step(Code.RESIZE, (375, 500, 2, True))], 1),
        ([Step(Code.BLUR, (5, 5, 1.0, 1.0))], 2),
    ],
)
def test_only_what_looks_at_neighbours_or_at_all_pixels_takes_a_pass(program: Program, rounds: int) -> None:
    assert lay_out(program, SIZE).rounds == rounds


def test_one_pass_of_w1_is_at_most_four_rounds() -> None:
    chain = Chain.of([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.RandAugment()])
    layouts = [lay_out(chain.draw(seed, SIZE), SIZE) for seed in range(500)]
    assert max(layout.rounds for layout in layouts) == 4
    assert {layout.size for layout in layouts} == {(224, 224)}
    assert all(len(layout.rows) == 1 and len(layout.rows[0]) < 2048 for layout in layouts)


def test_chains_that_are_mixed_run_side_by_side() -> None:
    sharp = Step(Code.SHARPNESS, (1.5,))
    mix = Step(Code.MIX, (0.4, ((0.3, (sharp, sharp, sharp)), (0.3, (sharp,)))))
    found = lay_out([mix], SIZE)
    assert len(found.rows) == 3
    assert found.rounds == 4


def test_memory_that_was_read_for_the_last_time_is_used_again() -> None:
    sharp = Step(Code.SHARPNESS, (1.5,))
    few, many = lay_out([sharp] * 3, SIZE), lay_out([sharp] * 30, SIZE)
    assert few.scratch_bytes == many.scratch_bytes
    assert many.rounds == 30


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Step(Code.CALL, (abs,)), "Python"),
        (Step(Code.RESIZE, (9, 9, int(Interpolation.BICUBIC), False)), "without antialiasing"),
        (Step(Code.AFFINE, (1.0, 0.1, 0.0, 0.0, 1.0, 0.0, int(Interpolation.BICUBIC), 0)), "BICUBIC"),
        (Step(Code.ERASE, (0, 0, 5, 5, None, 1)), "noise"),
        (Step(Code.GRAY, (4,)), "4 channels"),
        (Step(Code.MIX, (0.5, ((0.5, (Step(Code.CALL, (abs,)),)),))), "Python"),
    ],
)
def test_a_step_without_a_kernel_says_why(step: Step, reason: str) -> None:
    assert reason in supported(step)
    with pytest.raises(ValueError, match=f"{step.code.name}: .*{reason}"):
        lay_out([step], SIZE)


ALL: list[Any] = [
    Step(Code.CROP, (0, 0, 9, 9)), SMALLER, Step(Code.FLIP_H), Step(Code.FLIP_V), Step(Code.PAD, (1, 1, 1, 1, 0, "edge")), TURN,
    Step(Code.BRIGHTNESS, (1.1,)), Step(Code.POSTERIZE, (3,)), Step(Code.SOLARIZE, (9.0,)), Step(Code.INVERT), Step(Code.CONTRAST, (1.1,)),
    Step(Code.AUTOCONTRAST), Step(Code.EQUALIZE), Step(Code.SATURATION, (1.1,)), Step(Code.HUE, (0.1,)), Step(Code.GRAY, (3,)),
    Step(Code.SHARPNESS, (1.1,)), Step(Code.BLUR, (3, 3, 1.0, 1.0)), Step(Code.ERASE, (0, 0, 5, 5, 0, 1)), Step(Code.MIX, (1.0, ())),
    Step(Code.MIX_TENSORS, (1.0, ((0.0, (("Rotate", 9.0), ("Contrast", 0.3))),), "v2", 2)),
]  # fmt: skip


def test_every_step_of_ours_has_a_kernel() -> None:
    assert {step.code for step in ALL} == set(Code) - {Code.CALL}
    for step in ALL:
        assert supported(step) == ""
        assert lay_out([step], SIZE).rows


def test_what_has_refused_forms_is_looked_at_before_it_is_laid_out() -> None:
    """`lay_out` asks `supported` only about LIMITED codes, for speed: one missing there would be laid out wrongly."""
    cases = ast.walk(ast.parse(inspect.getsource(supported)))
    refused = {
        node.value.attr
        for node in cases
        if isinstance(node, ast.MatchValue) and isinstance(node.value, ast.Attribute)
    }
    assert refused == {code.name for code in LIMITED}


def test_an_image_too_large_for_32_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        lay_out([Step(Code.RESIZE, (40_000, 40_000, 2, True))], SIZE)
