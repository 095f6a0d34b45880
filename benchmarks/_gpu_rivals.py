"""Rivals of `scripts/bench gpu --part rivals` that stand on torchvision, as their users set them up."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any

import torch
from _gpu_chains import SIDE, torchvision_dataset
from _gpu_plan import Job
from _prepare_subjects import MEAN, STD, import_torchvision

READERS = 4
CHUNK = 32
"""Photos that SPDL hands from stage to stage at once: an event loop of Python's that is asked for each of them would be the limit."""
SPDL_AHEAD = 3
"""Batches on the device."""
CLOSING_S = 20.0


def timms(job: Job, root: Path, device: str) -> Iterator[Any]:
    """timm's PrefetchLoader: workers make uint8 by PIL, the device normalises on a stream of its own while the last batch trains."""
    from timm.data.loader import PrefetchLoader, fast_collate
    from timm.data.transforms import ToNumpy

    dataset = torchvision_dataset(root, job.workload)
    dataset.transform.transforms[-2:] = [ToNumpy()]
    loader: Any = torch.utils.data.DataLoader(
        dataset,
        batch_size=job.batch,
        shuffle=True,
        num_workers=job.workers,
        drop_last=True,
        pin_memory=device != "cpu",
        collate_fn=fast_collate,
    )
    dtype = torch.bfloat16 if device != "cpu" else None
    batches: Any = iter(loader)
    try:
        yield from PrefetchLoader(batches, MEAN, STD, device=torch.device(device), img_dtype=dtype)
    finally:
        batches._shutdown_workers()  # it stays alive otherwise, and its workers with it


def on_the_gpu(job: Job, files: list[str], device: str) -> Iterator[Any]:
    """torchvision alone: threads read, nvJPEG decodes a batch at once, v2 ops run on the device, image by image as they draw."""
    torchvision = import_torchvision()
    from torchvision.transforms import v2 as T  # noqa: N812

    crop = [T.RandomResizedCrop(SIDE, antialias=True), T.RandomHorizontalFlip()]
    augment = [] if job.workload == "W2" else [T.RandAugment(2, 9)]
    ops = T.Compose([*augment, *crop] if job.workload == "W3" else [*crop, *augment])
    tail = T.Compose([T.ToDtype(torch.bfloat16, scale=True), T.Normalize(MEAN, STD)])
    read, draw = torchvision.io.read_file, random.Random(job.repeat)
    with ThreadPoolExecutor(READERS) as pool:
        following = pool.map(read, draw.choices(files, k=job.batch))
        while True:
            batch = list(following)
            following = pool.map(read, draw.choices(files, k=job.batch))
            images = torchvision.io.decode_jpeg(batch, mode=torchvision.io.ImageReadMode.RGB, device=device)
            yield (
                tail(torch.stack([ops(image) for image in images])),
                torch.zeros(job.batch, dtype=torch.long),
            )


# ---- SPDL


@cache
def spdl_chain(workload: str) -> Any:
    """What is left to do when FFmpeg has done its part; None: nothing."""
    import_torchvision()
    from torchvision.transforms import v2 as T  # noqa: N812

    augment = T.RandAugment(2, 9)
    whole = T.Compose([augment, T.RandomResizedCrop(SIDE), T.RandomHorizontalFlip()])
    return {"W1": augment, "W2": None, "W3": whole}[workload]


def spdl_filter(workload: str, width: int, height: int) -> str:
    """What FFmpeg does to a photo once it is decoded."""
    if workload == "W3":
        return "scale=flags=bilinear,format=pix_fmts=rgb24"
    from _prepare_cv import place

    top, left, high, wide = place(height, width)
    flip = "hflip," if random.random() < 0.5 else ""
    return f"crop={wide}:{high}:{left}:{top},{flip}scale={SIDE}:{SIDE}:flags=bilinear,format=pix_fmts=rgb24"


def spdl_photos(workload: str, files: list[str]) -> torch.Tensor:
    """Some photos, by one thread, as uint8 with the channels last."""
    import numpy as np
    import spdl.io
    from PIL import Image

    frames: list[Any] = []
    for name in files:
        packets = spdl.io.demux_image(name)
        wanted = spdl_filter(workload, packets.width, packets.height)
        frames.append(spdl.io.decode_packets(packets, filter_desc=wanted))
    rest = spdl_chain(workload)
    if rest is None:
        made: torch.Tensor = spdl.io.to_torch(spdl.io.convert_frames(frames))
        return made
    images = torch.empty(len(files), SIDE, SIDE, 3, dtype=torch.uint8)
    for place, frame in zip(images.numpy(), frames, strict=True):
        photo = Image.fromarray(spdl.io.to_numpy(spdl.io.convert_frames(frame)))
        place[:] = np.asarray(rest(photo))
    return images


def spdl_sent(device: str, chunks: list[torch.Tensor]) -> torch.Tensor:
    """A batch on the device, through pinned memory and on a stream of SPDL's own."""
    import spdl.io

    if device == "cpu":
        return torch.cat(chunks)
    size = sum(map(len, chunks)), *chunks[0].shape[1:]
    pinned = torch.cat(chunks, out=torch.empty(size, dtype=torch.uint8, pin_memory=True))
    sent: torch.Tensor = spdl.io.transfer_tensor_h2d(pinned)
    return sent


def spdl_source(files: list[str], chunk: int, seed: int, ended: Event) -> Iterator[list[str]]:
    """The photos in random order, pass after pass."""
    draw, left = random.Random(seed), list[str]()
    while not ended.is_set():
        while len(left) < chunk:
            left += draw.sample(files, len(files))
        yield left[:chunk]
        del left[:chunk]


def spdl_begins() -> None:
    """In each process, as torch's loader does it: draws of its own, and no threads of torch's."""
    torch.set_num_threads(1)
    torch.seed()


class Spdl:
    """SPDL's pipeline with its own decoder. Its wheels have no nvJPEG: FFmpeg decodes, crops, resizes and flips in threads; torchvision's
    RandAugment follows on PIL's images, twice as fast there as on tensors; the device normalises. `processes`: one for each worker, so that
    none waits for another's hold of Python's lock."""

    def __init__(self, job: Job, files: list[str], device: str, tuned: Mapping[str, Any]) -> None:
        from spdl.pipeline import PipelineBuilder
        from spdl.pipeline.defs import MAIN_PROCESS, ProcessPoolExecutorConfig

        spdl_photos(job.workload, files[:1])  # what is missing is said here, and not by a thread
        chunk, self._ended = math.gcd(job.batch, CHUNK), Event()
        made: Any = PipelineBuilder().add_source(spdl_source(files, chunk, job.repeat, self._ended))
        prepare = partial(spdl_photos, job.workload)
        if tuned.get("processes"):
            pool = ProcessPoolExecutorConfig(
                max_workers=job.workers, initializer=spdl_begins, mp_context="fork"
            )
            made = made.to(pool).pipe(prepare).to(MAIN_PROCESS)
        else:
            made = made.pipe(prepare, concurrency=job.workers)
        self._sender = ThreadPoolExecutor(1)
        made = made.aggregate(job.batch // chunk).pipe(partial(spdl_sent, device), executor=self._sender)
        self._pipeline: Any = made.add_sink(SPDL_AHEAD).build(num_threads=job.workers + 1, max_failures=0)
        self._pipeline.start()
        batches = self._pipeline.get_iterator()
        self._batches: Any = chain([next(batches)], batches)  # to begin is no part of the warm-up
        self._targets = torch.zeros(job.batch, dtype=torch.long, device=device)
        self._dtype = torch.bfloat16 if device != "cpu" else torch.float32
        self._mean, self._std = (
            torch.tensor(each, dtype=self._dtype, device=device).mul_(255).view(3, 1, 1)
            for each in (MEAN, STD)
        )

    def __iter__(self) -> Spdl:
        return self

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        images = next(self._batches).permute(0, 3, 1, 2).to(self._dtype)
        return images.sub_(self._mean).div_(self._std), self._targets

    def close(self) -> None:
        """Ends its threads and processes, and gives back what they kept on the device."""
        self._ended.set()
        for _ in self._batches:  # whoever stops it earlier waits seconds for each process
            pass
        self._pipeline.stop(timeout=CLOSING_S)
        self._sender.shutdown()
        self._batches = self._pipeline = None
