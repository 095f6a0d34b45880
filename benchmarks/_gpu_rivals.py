"""Rivals of `scripts/bench gpu --part rivals` that stand on torchvision, as their users set them up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from _gpu_chains import SIDE, torchvision_dataset
from _gpu_plan import Job
from _prepare_subjects import MEAN, STD, import_torchvision

READERS = 4


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
    return iter(PrefetchLoader(loader, MEAN, STD, device=torch.device(device), img_dtype=dtype))


def on_the_gpu(job: Job, files: list[str], device: str) -> Iterator[Any]:
    """torchvision alone: threads read, nvJPEG decodes a batch at once, v2 ops run on the device, image by image as they draw."""
    torchvision = import_torchvision()
    from torchvision.transforms import v2 as T  # noqa: N812

    crop = [T.RandomResizedCrop(SIDE, antialias=True), T.RandomHorizontalFlip()]
    augment = [] if job.workload == "W2" else [T.RandAugment(2, 9)]
    chain = T.Compose([*augment, *crop] if job.workload == "W3" else [*crop, *augment])
    tail = T.Compose([T.ToDtype(torch.bfloat16, scale=True), T.Normalize(MEAN, STD)])
    read, draw = torchvision.io.read_file, random.Random(job.repeat)
    with ThreadPoolExecutor(READERS) as pool:
        following = pool.map(read, draw.choices(files, k=job.batch))
        while True:
            batch = list(following)
            following = pool.map(read, draw.choices(files, k=job.batch))
            images = torchvision.io.decode_jpeg(batch, mode=torchvision.io.ImageReadMode.RGB, device=device)
            yield (
                tail(torch.stack([chain(image) for image in images])),
                torch.zeros(job.batch, dtype=torch.long),
            )
