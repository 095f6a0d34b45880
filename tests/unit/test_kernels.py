"""The GPU kernels beside the CPU's steps, in Triton's interpreter: bounds as docs/benchmarks/gpu.md states them. No GPU needed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from penstock.errors import ConfigError
from penstock.kernels.layout import lay_out
from penstock.kernels.run import Executor, Limits, TaskTooLarge
from penstock.kernels.table import Sample
from penstock.transforms.cpu import execute
from penstock.transforms.steps import Code, Program, Step
from penstock.transforms.tail import Tail
from tests.conftest import FULL
from tests.kernel_cases import CHAINS, EXACT, IMAGES, NEARLY, SIZE, SMALL, difference, drawn, programs, run

triton = pytest.importorskip("triton")
if not triton.knobs.runtime.interpret:  # conftest.py says so where there is no GPU
    pytest.skip("tests/gpu compares the kernels themselves", allow_module_level=True)


@pytest.fixture(autouse=True)
def _numbers_may_overflow() -> Iterator[None]:
    """The interpreter computes what masks throw away, too."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("name", EXACT)
def test_a_program_is_the_same_to_the_last_bit(name: str) -> None:
    assert difference(EXACT[name], ["noise", "smooth"], "cpu") == 0


@pytest.mark.parametrize("name", ["contrast 1.9", "autocontrast", "equalize"])
def test_statistics_of_flat_and_narrow_images_are_the_same(name: str) -> None:
    assert difference(EXACT[name], ["flat", "narrow"], "cpu") == 0


@pytest.mark.parametrize("name", NEARLY)
def test_what_is_resampled_differs_by_one_level_at_most(name: str) -> None:
    assert difference(NEARLY[name], ["noise", "smooth"], "cpu") <= 1


@pytest.mark.parametrize("name", CHAINS)
def test_a_task_of_different_programs_is_what_the_cpu_makes_of_each(name: str) -> None:
    drawings = [drawn(name, seed) for seed in range(6)]
    found = run([program for program, _ in drawings], [pixels for _, pixels in drawings], "cpu")
    for got, (program, pixels) in zip(found, drawings, strict=True):
        assert np.array_equal(got, execute(program, pixels)), program


@settings(max_examples=200 if FULL else 12, deadline=None, suppress_health_check=list(HealthCheck))
@given(program=programs())
def test_any_program_is_what_the_cpu_makes_of_it(program: Program) -> None:
    (found,) = run([program], [IMAGES["smooth"]], "cpu")
    assert np.array_equal(found, execute(program, IMAGES["smooth"]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pixels_leave_as_the_tail_makes_them(dtype: torch.dtype, layout: torch.memory_format) -> None:
    tail = (
        Tail()
        if dtype == torch.uint8
        else Tail(dtype, "multiply", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    batch = torch.zeros(3, 3, *SIZE, dtype=dtype).to(memory_format=layout)
    image = IMAGES["noise"]
    sample = Sample(lay_out([], SIZE), torch.from_numpy(image).permute(2, 0, 1).contiguous(), 1)
    Executor(batch, tail, SMALL).run([sample], batch)
    assert torch.equal(batch[1], tail.finish(image))
    assert not batch[0].any()
    assert not batch[2].any()


def test_grey_images_have_one_channel() -> None:
    batch = torch.zeros(1, 1, *SIZE, dtype=torch.uint8)
    program = [Step(Code.GRAY, (1,)), Step(Code.EQUALIZE)]
    sample = Sample(lay_out(program, SIZE, (135, 3, 1)), torch.from_numpy(IMAGES["noise"]), 0)
    Executor(batch, Tail(), SMALL).run([sample], batch)
    assert np.array_equal(batch[0, 0].numpy(), execute(program, IMAGES["noise"])[:, :, 0])


def test_a_grey_image_may_be_read_as_three_channels() -> None:
    batch = torch.zeros(1, 3, *SIZE, dtype=torch.uint8)
    plane = IMAGES["noise"][:, :, 0].copy()
    Executor(batch, Tail(), SMALL).run(
        [Sample(lay_out([], SIZE, (45, 1, 0)), torch.from_numpy(plane), 0)], batch
    )
    assert all(np.array_equal(channel.numpy(), plane) for channel in batch[0])


def test_launches_do_not_depend_on_the_number_of_samples() -> None:
    batch = torch.zeros(16, 3, *SIZE, dtype=torch.uint8)
    executor = Executor(batch, Tail(), SMALL)
    image, program = torch.from_numpy(IMAGES["noise"]), EXACT["equalize"]
    samples = [Sample(lay_out(program, SIZE, (135, 3, 1)), image, at) for at in range(16)]
    assert executor.run(samples, batch) == executor.run(samples[:1], batch) == 3


def test_a_task_that_does_not_fit_is_refused_and_the_next_one_runs() -> None:
    batch = torch.zeros(4, 3, *SIZE, dtype=torch.uint8)
    image = torch.from_numpy(IMAGES["noise"])
    small = Limits(rows=2, table_bytes=2048, scratch_bytes=8192, slots=1, block=4096)
    executor = Executor(batch, Tail(), small)
    whole, equal, sharp, long = (
        lay_out(program, SIZE, (135, 3, 1))
        for program in (
            [],
            [Step(Code.EQUALIZE)],
            [Step(Code.SHARPNESS, (2.0,))] * 3,
            [Step(Code.INVERT)] * 40,
        )
    )
    with pytest.raises(TaskTooLarge, match="3 rows"):
        executor.run([Sample(whole, image, at) for at in range(3)], batch)
    with pytest.raises(TaskTooLarge, match="2 slots"):
        executor.run([Sample(equal, image, at) for at in range(2)], batch)
    with pytest.raises(TaskTooLarge, match="bytes of scratch"):
        executor.run([Sample(sharp, image, 0)], batch)
    with pytest.raises(TaskTooLarge, match="table"):
        executor.run([Sample(long, image, 0)], batch)
    executor.run([Sample(whole, image, 3)], batch)
    assert np.array_equal(batch[3].permute(1, 2, 0).numpy(), IMAGES["noise"])


def test_memory_that_is_not_the_samples_is_never_touched() -> None:
    batch = torch.zeros(4, 3, *SIZE, dtype=torch.uint8)
    executor = Executor(batch, Tail(), SMALL)
    whole, image = lay_out([], SIZE), torch.from_numpy(IMAGES["noise"])
    with pytest.raises(ValueError, match="slot 4"):
        executor.run([Sample(whole, image, 4)], batch)
    with pytest.raises(ValueError, match="bytes"):
        executor.run([Sample(whole, image[1:], 0)], batch)
    with pytest.raises(ValueError, match="made for batches"):
        executor.run([Sample(whole, image, 0)], batch.float())


def test_a_batch_must_agree_with_the_chain() -> None:
    with pytest.raises(ConfigError, match="ends in uint8"):
        Executor(torch.zeros(1, 3, 8, 8), Tail(), SMALL)
    with pytest.raises(ConfigError, match="1 or 3 channels"):
        Executor(torch.zeros(1, 4, 8, 8, dtype=torch.uint8), Tail(), SMALL)
