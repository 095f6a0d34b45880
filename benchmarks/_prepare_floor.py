"""Bare steps on one core, with no loader round them: what is left when everything else is free, and where our own time goes.

The floor of a workload is the sum of its steps by the fastest plain library call for each: read, full decode (simplejpeg),
crop and resize (OpenCV, not antialiased), flip, twice the mean of the 14 ops (OpenCV), normalise in one pass (our compiled loop
where it was built, else torch into a warm buffer). Region and scaled decoding, which would lower it, are not in it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

import _machine

PHOTOS = 120
ROUNDS = 3
Figures = dict[str, float]


def floor(params: dict[str, Any]) -> Figures:
    """Microseconds of each bare step, and samples per second if all cores did nothing else."""
    import _prepare_cv as cv
    import cv2
    import simplejpeg
    import torch

    torch.set_num_threads(1)
    random.seed(0)
    files = _some(params["root"])
    data = [Path(file).read_bytes() for file in files]
    images = [simplejpeg.decode_jpeg(each, colorspace="RGB") for each in data]
    at = [cv.place(*image.shape[:2]) for image in images]
    small = [cv.crop(image, place) for image, place in zip(images, at, strict=True)]
    augmented = images if params["workload"] == "W3" else small

    figures = {
        "read": _best(lambda i: Path(files[i]).read_bytes(), len(files)),
        "decode": _best(lambda i: simplejpeg.decode_jpeg(data[i], colorspace="RGB"), len(files)),
        "crop": _best(lambda i: cv.crop(images[i], at[i]), len(files)),
        "flip": _best(lambda i: cv2.flip(small[i], 1), len(files)) / 2,
        "normalise": _best(_normaliser(small), len(files)),
    }
    if params["workload"] != "W2":
        each = [_best(lambda i, op=op: op(augmented[i], 1), 40) for op in cv.CHOICES]
        figures["augment"] = 2 * fmean(each)
    total_us = sum(figures.values())
    found = {f"{name}_us": us for name, us in figures.items()}
    return {
        **found,
        "samples_per_s": _machine.cores() * 1e6 / total_us,
        "cpu_ms_per_sample": total_us / 1000,
    }


def _some(root: str) -> list[str]:
    files = sorted(str(path) for path in (Path(root) / "photos").iterdir())
    return random.Random(0).sample(files, min(PHOTOS, len(files)))


def _normaliser(images: list[Any]) -> Callable[[int], Any]:
    import torch

    from penstock import accel
    from penstock.transforms.tail import Tail

    out = torch.empty(3, 224, 224)
    if accel.compiled() is not None:
        from _prepare_subjects import MEAN, STD

        tail = Tail(torch.float32, "multiply", MEAN, STD)
        return lambda i: tail.finish(images[i], out)
    return lambda i: out.copy_(torch.from_numpy(images[i]).permute(2, 0, 1)).mul_(0.017).sub_(2.0)


def _best(step: Callable[[int], Any], count: int) -> float:
    """Microseconds of CPU per call, the least of some rounds: others on the machine only ever add to it."""
    rounds = []
    for _ in range(ROUNDS):
        started_s = time.thread_time()
        for i in range(count):
            step(i)
        rounds.append((time.thread_time() - started_s) / count * 1e6)
    return min(rounds)


# ---- where our own time goes


def profile(setting: Any, *, fast: bool, passes: int = 2) -> Figures:
    """Microseconds of CPU of each part of one of our samples, on one core, without a loader."""
    import torch
    from _prepare_subjects import our_dataset

    from penstock.pipeline.decode import Encoded
    from penstock.transforms.cpu import execute
    from penstock.transforms.windows import stages

    torch.set_num_threads(1)
    dataset = our_dataset(setting, fast=fast)
    chain, slot = dataset.chain, torch.empty(3, 224, 224)
    parts: dict[str, float] = {}
    indices = random.Random(0).sample(range(len(dataset)), min(2 * PHOTOS, len(dataset)))
    clock = _Clock(parts)
    for seed, index in enumerate([*indices[:20], *indices * passes]):
        if seed == 20:
            parts.clear()  # the first ones load libraries and fill caches
        clock.start()
        data, _ = dataset.read(index)
        clock.stop("read")
        encoded = Encoded(data, fast=fast)
        clock.stop("header")
        program = chain.draw(seed, encoded.size)
        clock.stop("draw")
        plan = stages(program, encoded.size)
        clock.stop("plan")
        image = encoded.part(plan[0].window)
        clock.stop("decode")
        at = 0
        for name, steps in _grouped(program):
            image = execute(steps, image, plan[at : at + len(steps) + 1])
            at += len(steps)
            clock.stop(name)
        chain.tail.finish(image, slot)
        clock.stop("normalise into the slot")
    count = len(indices) * passes
    return {name: total / count for name, total in parts.items()}


class _Clock:
    def __init__(self, parts: dict[str, float]) -> None:
        self.parts, self.at_ns = parts, 0

    def start(self) -> None:
        self.at_ns = time.thread_time_ns()

    def stop(self, name: str) -> None:
        now_ns = time.thread_time_ns()
        self.parts[name] = self.parts.get(name, 0.0) + (now_ns - self.at_ns) / 1000
        self.at_ns = time.thread_time_ns()


def _grouped(program: Iterable[Any]) -> Iterable[tuple[str, list[Any]]]:
    """Crop with resize, flips, and each op by its name; tables in a row stay together, as they are applied."""
    from penstock.transforms.steps import TABLES, Code

    steps = list(program)
    at = 0
    while at < len(steps):
        end = at + 1
        code = steps[at].code
        if code in TABLES:
            while end < len(steps) and steps[end].code in TABLES:
                end += 1
            name = "op: tables"
        elif code in (Code.CROP, Code.RESIZE):
            while end < len(steps) and steps[end].code in (Code.CROP, Code.RESIZE):
                end += 1
            name = "crop + resize"
        elif code == Code.FLIP_H:
            name = "flip"
        else:
            name = f"op: {code.name.lower()}"
        yield name, steps[at:end]
        at = end
