"""DALI as a subject: JPEG files decoded and augmented on the GPU, in the layout that the training wants.

Its ops are not torchvision's: RandomResizedCrop comes without antialiasing, and it has no bfloat16 output. A subject says how it is tuned: the
share of files for the card's JPEG engines, whether the crop is taken inside the decoder, threads, layout, memory that is taken ahead.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from _gpu_chains import SIDE
from _gpu_plan import Job
from _prepare_subjects import MEAN, STD

AHEAD = 2
HINTS = ("preallocate_width_hint", "preallocate_height_hint")


def pipeline(job: Job, files: list[str], device: str, tuned: Mapping[str, Any]) -> Any:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.auto_aug.rand_augment import rand_augment

    place = {"device": "cpu" if device == "cpu" else "mixed", "output_type": types.RGB}
    if device != "cpu":
        place |= {name: tuned[name] for name in ("hw_decoder_load", *HINTS) if name in tuned}
    layout = tuned.get("layout", "HWC")
    resized = {"size": [SIDE, SIDE], "interp_type": types.INTERP_LINEAR, "antialias": False}

    @pipeline_def(
        batch_size=job.batch,
        num_threads=tuned.get("threads", job.workers),
        device_id=None if device == "cpu" else 0,
        prefetch_queue_depth=AHEAD,
        enable_conditionals=True,
        seed=job.repeat,
    )
    def made() -> Any:
        coded, labels = fn.readers.file(
            files=files, labels=[0] * len(files), random_shuffle=True, initial_fill=len(files), name="photos"
        )
        if job.workload == "W3":
            shape = fn.peek_image_shape(coded)
            images = rand_augment(fn.decoders.image(coded, **place), n=2, m=9, shape=shape)
            images = fn.random_resized_crop(images, **resized)
            images = fn.flip(images, horizontal=fn.random.coin_flip())
        else:
            if tuned.get("crops", "inside") == "inside":
                images = fn.resize(fn.decoders.image_random_crop(coded, **place), **resized)
            else:
                images = fn.random_resized_crop(fn.decoders.image(coded, **place), **resized)
            images = fn.flip(images, horizontal=fn.random.coin_flip())
            if job.workload != "W2":
                images = rand_augment(images, n=2, m=9, shape=[SIDE, SIDE])
        scaled = {"mean": [255 * each for each in MEAN], "std": [255 * each for each in STD]}
        images = fn.crop_mirror_normalize(images, dtype=types.FLOAT16, output_layout=layout, **scaled)
        return images, labels

    return made()


class Dali:
    """Its batches without end, as torch's tensors, channels last."""

    def __init__(self, job: Job, files: list[str], device: str, tuned: Mapping[str, Any]) -> None:
        self._channels_last = tuned.get("layout", "HWC") == "HWC"
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        with warnings.catch_warnings(record=True):  # of its own modules about each other
            self._iterator: Any = DALIGenericIterator(
                [pipeline(job, files, device, tuned)], ["images", "labels"], size=-1
            )

    def __iter__(self) -> Dali:
        return self

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        (batch,) = next(self._iterator)
        images = batch["images"]
        return images.permute(0, 3, 1, 2) if self._channels_last else images, batch["labels"].reshape(
            -1
        ).long()

    def close(self) -> None:
        """Gives its memory back: other subjects are measured on the same card."""
        self._iterator = None
        gc.collect()
        from nvidia.dali import backend

        if hasattr(backend, "ReleaseUnusedMemory"):
            backend.ReleaseUnusedMemory()
