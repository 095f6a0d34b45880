"""Batches of prepared photos by Ray Data, for `scripts/bench remote_rivals`. A module of its own: its classes travel to the actors by name."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray
import ray.data
import torch
from _prepare_cv import Prepare
from _prepare_subjects import MEAN, STD, Setting, Shuffled, our_dataset

import penstock

EPOCH = 400_000
"""Samples: the end of an epoch is not measured here."""


class PrepareSame:
    """Our dataset behind Ray Data: the same code prepares a sample. `whole`: to normalised float32, else to uint8."""

    def __init__(self, setting: Setting, *, whole: bool) -> None:
        torch.set_num_threads(1)
        self.dataset = our_dataset(setting, fast=True)
        if not whole:
            ops = list(self.dataset.chain.ops)  # ToDtype and Normalize are no part of them
            self.dataset = penstock.ImageFolder(setting.root, ops, fast_decode=True)

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        return {"image": np.stack([self.dataset[index][0].numpy() for index in rows["item"].tolist()])}


class PrepareOpenCV:
    """What a user of Ray Data would write for speed."""

    def __init__(self, setting: Setting, *, whole: bool) -> None:
        self.prepare, self.files = Prepare(setting.workload), setting.files
        assert whole

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        return {"image": np.stack([self.prepare(self.files[index]) for index in rows["item"].tolist()])}


def normalised(rows: dict[str, Any]) -> dict[str, Any]:
    """Normalise uint8 photos in the training process."""
    scale = torch.tensor([1 / (255 * std) for std in STD]).view(3, 1, 1)
    shift = torch.tensor([-mean / std for mean, std in zip(MEAN, STD, strict=True)]).view(3, 1, 1)
    return {"image": torch.as_tensor(rows["image"]).float().mul_(scale).add_(shift)}


def batches(
    setting: Setting,
    *,
    opencv: bool = False,
    whole: bool = True,
    actors: int = 2,
    block: int = 128,
    prefetch: int = 4,
    options: dict[str, Any] | None = None,
) -> Iterator[Any]:
    """Ray Data's `iter_torch_batches` over a pool of actors, one for each CPU that a host lends."""
    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    ray.data.DataContext.get_current().enable_progress_bars = False
    order = iter(Shuffled(len(setting.files)))
    rows = ray.data.from_items([next(order) for _ in range(EPOCH)], override_num_blocks=EPOCH // block)
    prepared = rows.map_batches(
        PrepareOpenCV if opencv else PrepareSame,
        batch_size=block,
        fn_constructor_args=(setting,),
        fn_constructor_kwargs={"whole": whole},
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=1,
        **(options or {}),
    )
    found = prepared.iter_torch_batches(
        batch_size=setting.batch_size,
        prefetch_batches=prefetch,
        drop_last=True,
        collate_fn=None if whole else normalised,
    )
    return (batch["image"] for batch in found)
