"""The benchmark's station that executes torchvision's ops image after image, without a GPU: here files are decoded already."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from penstock import GpuPrep
from penstock.gpu import cuda
from penstock.gpu.nvjpeg import DecodeError
from penstock.gpu.prep import Look
from penstock.gpu.slots import DECODED, ENCODED, HEAD, Contents, Task, padded
from penstock.transforms.tail import Tail
from tests.torchvision_here import torchvision

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SIDE = 8
LOOK = Look((SIDE, SIDE), Tail(torch.float32, "multiply"), 0)
Ops = Callable[[torch.Tensor], torch.Tensor]


SIZES = {0: (30, 41), 2: (64, 50), 3: (33, 37)}
"""Of the images in a batch of four, by place."""


def planes_of(ordinal: int) -> torch.Tensor:
    """The pixels that a sample's file is taken to hold."""
    random = torch.Generator().manual_seed(ordinal)
    return torch.randint(256, (3, *SIZES[ordinal]), dtype=torch.uint8, generator=random)


def task_of(form: int, *ordinals: int) -> Task:
    slots = torch.zeros(4, 1024, dtype=torch.uint8)
    for ordinal in ordinals:
        head = HEAD.pack(form, 0, 0, 0, *SIZES[ordinal], 0, 1, 0, 1, 0, 0)
        slots.numpy()[ordinal, : len(head)] = memoryview(head)
    return Task(Contents(slots, (SIDE, SIDE)), list(ordinals))


@pytest.fixture
def stations(monkeypatch: pytest.MonkeyPatch) -> Any:
    torchvision()
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("_gpu_stations")


def means(planes: torch.Tensor) -> torch.Tensor:
    return planes.float().mean((1, 2)).view(3, 1, 1).expand(3, SIDE, SIDE)


def station_of(stations: Any, ops: Ops, *, most: int = 99) -> Any:
    """Ready, but for a decoder and for kernels; it can decode at most so many files together."""

    class OnCpu(stations.PerSample):  # type: ignore[misc]
        def _decoded(self, task: Task) -> Any:
            if len(task.ordinals) > most:
                raise DecodeError("nvjpegDecodeBatched", 4)
            found, at = [], 0
            for ordinal in task.ordinals:
                planes = planes_of(ordinal).flatten()
                self._images[at : at + len(planes)] = planes
                found.append(self._images.data_ptr() + at)
                at += padded(len(planes))
            return np.array(found)

        def _smaller(self, task: Task, out: torch.Tensor) -> None:
            if len(task.ordinals) > 1:
                super()._smaller(task, out)
            else:
                self.by_cpu += 1

    station = OnCpu(LOOK, torch.empty(1, 3, SIDE, SIDE), task=8, workload="W1")
    station._images, station._executor, station._chain = (
        torch.zeros(1 << 18, dtype=torch.uint8),
        object(),
        ops,
    )
    return station


def made(station: Any, form: int = ENCODED) -> torch.Tensor:
    out = torch.full((4, 3, SIDE, SIDE), -1.0).to(memory_format=torch.channels_last)
    station.make(task_of(form, *SIZES), out, None)
    return out


@pytest.mark.parametrize("most", [99, 1])
def test_each_image_comes_from_where_it_was_decoded_to_and_goes_to_its_place(
    stations: Any, most: int
) -> None:
    station = station_of(stations, means, most=most)
    out = made(station)
    for ordinal in SIZES:
        assert torch.equal(out[ordinal], means(planes_of(ordinal)))
    assert (out[1] == -1).all()
    assert station.by_cpu == 0


def test_what_cannot_be_decoded_is_left_to_the_cpu(stations: Any) -> None:
    station = station_of(stations, means, most=0)
    assert (made(station) == -1).all()
    assert station.by_cpu == len(SIZES)


def test_what_workers_have_decoded_is_refused(stations: Any) -> None:
    with pytest.raises(ValueError, match="finish=False"):
        made(station_of(stations, means), DECODED)


def test_an_op_that_fails_is_not_left_to_the_cpu(stations: Any) -> None:
    def fails(planes: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such op")

    station = station_of(stations, fails)
    with pytest.raises(RuntimeError, match="no such op"):
        made(station)
    assert station.by_cpu == 0


@pytest.mark.parametrize("workload", ["W1", "W3", "AA", "DAA"])
def test_torchvisions_ops_make_normalised_images_with_draws_of_their_own(
    stations: Any, workload: str
) -> None:
    ops, planes = stations.device_chain(workload, torch.bfloat16), planes_of(2)
    several = torch.stack([ops(planes) for _ in range(8)])
    assert several.shape == (8, 3, 224, 224)
    assert several.dtype == torch.bfloat16
    assert several.min() >= -2.2
    assert several.max() <= 2.7
    assert not torch.equal(several[0], several[1])


def test_lanes_have_such_stations_only_as_long_as_they_are_asked_for(stations: Any) -> None:
    theirs = cuda.CudaStation
    with stations.per_sample("W3"):
        assert isinstance(cuda.CudaStation(LOOK, torch.empty(1, 3, SIDE, SIDE), task=8), stations.PerSample)
    assert cuda.CudaStation is theirs


def test_the_loader_takes_what_every_subject_asks_of_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    for subject in importlib.import_module("_gpu_plan").SUBJECTS.values():
        GpuPrep.of(subject.prep if isinstance(subject.prep, str) else GpuPrep(**subject.prep))
