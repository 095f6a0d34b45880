"""The kernels on a GPU: the same pixels as the CPU's steps, from graphs and without them, and no allocation. Needs a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from penstock.kernels.run import Executor, Limits
from penstock.transforms.cpu import execute
from penstock.transforms.steps import Program
from penstock.transforms.tail import Tail
from tests.kernel_cases import CHAINS, EXACT, IMAGES, NEARLY, difference, drawn, laid_out, programs, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
NORMAL = Tail(torch.bfloat16, "multiply", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.fixture(autouse=True)
def _on_a_stream_of_its_own() -> Iterator[None]:
    with torch.cuda.stream(torch.cuda.Stream()):
        yield
        torch.cuda.synchronize()


@pytest.mark.parametrize("name", EXACT)
def test_a_program_is_the_same_to_the_last_bit(name: str) -> None:
    assert difference(EXACT[name], list(IMAGES), "cuda") == 0


@pytest.mark.parametrize("name", NEARLY)
def test_what_is_resampled_differs_by_one_level_at_most(name: str) -> None:
    assert difference(NEARLY[name], list(IMAGES), "cuda") <= 1


@pytest.mark.parametrize("name", CHAINS)
def test_a_task_of_different_programs_is_what_the_cpu_makes_of_each(name: str) -> None:
    drawings = [drawn(name, seed) for seed in range(64)]
    for begin in range(0, 64, 8):
        part = drawings[begin : begin + 8]
        found = run([program for program, _ in part], [pixels for _, pixels in part], "cuda")
        for got, (program, pixels) in zip(found, part, strict=True):
            assert np.array_equal(got, execute(program, pixels)), program


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(program=programs())
def test_any_program_is_what_the_cpu_makes_of_it(program: Program) -> None:
    (found,) = run([program], [IMAGES["smooth"]], "cuda")
    assert np.array_equal(found, execute(program, IMAGES["smooth"]))


def test_graphs_give_the_same_and_nothing_is_allocated() -> None:
    batch = torch.zeros(16, 3, 32, 32, dtype=torch.bfloat16, device="cuda").to(
        memory_format=torch.channels_last
    )
    executor = Executor(batch, NORMAL, Limits(rows=16, scratch_bytes=8 << 20))
    executor.warm_up(range(1, 6), [16])
    tasks = [[drawn("RandAugment", 16 * task + at) for at in range(16)] for task in range(20)]
    ready = [
        laid_out([program for program, _ in task], [pixels for _, pixels in task], "cuda") for task in tasks
    ]
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()
    for task, samples in zip(tasks, ready, strict=True):
        rounds = max(sample.layout.rounds for sample in samples)
        assert (16, rounds) in executor.graphs
        assert executor.run(samples, batch) == rounds + 1
        found = batch.cpu()
        for got, (program, pixels) in zip(found, task, strict=True):
            assert torch.equal(got, NORMAL.finish(execute(program, pixels)))
    after = torch.cuda.memory_stats()
    for name in ("num_device_alloc", "num_alloc_retries", "allocation.all.allocated"):
        assert after[name] == before[name], name


def test_scratch_may_come_with_the_task() -> None:
    program, pixels = drawn("RandAugment before the crop", 3)
    samples = laid_out([program], [pixels], "cuda")
    batch = torch.zeros(1, 3, 32, 32, dtype=torch.uint8, device="cuda")
    executor = Executor(batch, Tail(), Limits(rows=4, scratch_bytes=0))
    executor.run(samples, batch, torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
    assert np.array_equal(batch[0].permute(1, 2, 0).cpu().numpy(), execute(program, pixels))
