"""A loader like another, to measure with: it shares the dataset, and draws from copies of sampler and generator."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch.utils.data import BatchSampler

from penstock.client.arguments import TorchArguments
from penstock.client.remote_side import RemoteSide
from penstock.config import KEYWORDS
from penstock.epochs.epochs import OrderSource
from penstock.errors import ConfigError
from penstock.loader import DataLoader

OWN_ORDER = ("sampler", "batch_sampler", "generator", "num_workers", "persistent_workers", "prefetch_factor")


def alike(loader: DataLoader[Any], remote: RemoteSide | None = None) -> DataLoader[Any]:
    """Return a loader that prepares the same samples by the same workers, and by remote ones if given.

    It uses no `reuse=`, which would begin with an empty store.
    """
    given, config = TorchArguments.of(loader), loader._config
    source = loader._epochs.source.following(loader.sampler, loader.batch_sampler)
    others = {
        name: getattr(given, name) for name in TorchArguments.__dataclass_fields__ if name not in OWN_ORDER
    }
    ours = {name: getattr(config, name) for name in KEYWORDS}
    ours |= {"reuse": None, "trace": None, "shard": None, "remote": None}
    if not source.streams and config.seed is None:
        ours["seed"] = 0  # otherwise it would be drawn, on all ranks together
    found: DataLoader[Any] = DataLoader(
        **{**others, **ours, **order_of(given, source)},
        num_workers=max(1, given.num_workers),
        prefetch_factor=given.prefetch_factor,
        persistent_workers=True,
    )
    found._remote = remote
    return found


def order_of(given: TorchArguments, source: OrderSource) -> dict[str, Any]:
    """Return the arguments that decide the order."""
    if source.streams:
        return {"generator": copied(given.generator, {})}
    if source.order == "planned":
        several = {"shard": (source.rank, source.world)} if source.world > 1 else {}
        return {"shuffle": source.shuffles, **several}
    generator = copied(given.generator, {})
    memo = {id(given.dataset): given.dataset, id(given.generator): generator}
    batches = given.batch_sampler
    plain = batches is None or (type(batches) is BatchSampler and batches.sampler is given.sampler)
    try:
        if plain:
            return {"sampler": deepcopy(given.sampler, memo), "generator": generator}
        whole = {"batch_size": 1, "drop_last": False, "shuffle": None}
        return {"batch_sampler": deepcopy(batches, memo), "generator": generator, **whole}
    except Exception as exc:
        name = type(given.sampler if plain else batches).__name__
        raise ConfigError(
            f"profile needs a copy of the sampler, so as to leave it as it is, and {name} cannot be copied ({exc})"
        ) from exc


def copied(generator: torch.Generator | None, memo: dict[int, Any]) -> torch.Generator | None:
    return None if generator is None else deepcopy(generator, memo)
