"""Looking at a loader: what it is, in one line, and one of its samples under a debugger."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from penstock.engine.inline import prepare_one
from penstock.engine.trainers import KEYWORDS
from penstock.errors import ConfigError
from penstock.lanes.seeding import generators_kept

SAID = ("seed", "shard")
"""Keywords that the line has in words of its own."""


def in_words(loader: Any) -> str:
    """The loader's `repr`. It is asked for while others look into an error, too, so it never raises."""
    try:
        return f"{type(loader).__name__}({'; '.join(', '.join(part) for part in parts(loader) if part)})"
    except Exception:  # noqa: BLE001 - a loader whose constructor has failed lacks attributes
        return object.__repr__(loader)


def parts(loader: Any) -> Iterator[list[str]]:
    source = loader._epochs.source
    yield [f"{type(loader.dataset).__name__}{length_of(loader.dataset)}"]
    yield [*batches_of(loader), *order_of(loader, source)]
    workers = loader.num_workers
    auto = " (auto)" if loader._crew.auto and loader._crew.auto == workers else ""
    yield [f"{workers} worker{'' if workers == 1 else 's'}{auto}" if workers else "no workers"]
    yield others(loader)


def length_of(dataset: Any) -> str:
    try:
        return f" of {len(dataset):,} samples"
    except Exception:  # noqa: BLE001 - the user's own code, or none
        return ""


def batches_of(loader: Any) -> list[str]:
    if loader.batch_sampler is None:
        return ["single samples"]
    if loader.batch_size is None:
        return [f"batches of {type(loader.batch_sampler).__name__}"]
    return [f"batches of {loader.batch_size}{', the last dropped if incomplete' if loader.drop_last else ''}"]


def order_of(loader: Any, source: Any) -> list[str]:
    """In which order samples come, and what it depends on."""
    order = source.following(loader.sampler, loader.batch_sampler).order
    if order == "streamed":
        return ["in the dataset's own order"]
    if order == "sampled":
        named = loader.sampler if loader.batch_size is not None else loader.batch_sampler
        return [f"in the order of {type(named).__name__}"]
    rank = [f"rank {source.rank} of {source.world}"] if source.world > 1 else []
    seed = loader._epochs.seed
    drawn = "" if seed is None else f" (seed {seed})"
    return [f"shuffled{drawn}" if source.shuffles else f"in order{drawn}", *rank]


def others(loader: Any) -> list[str]:
    """Keywords of ours that are not at their defaults."""
    defaults = inspect.signature(base_of(loader)).parameters
    return [
        f"{name}={getattr(loader, name)!r}"
        for name in KEYWORDS
        if name not in SAID and getattr(loader, name) != defaults[name].default
    ]


def base_of(loader: Any) -> Any:
    """The class that has our keywords: a subclass may take others."""
    return next(kind for kind in type(loader).__mro__ if kind.__module__ == "penstock.loader")


def debugged(loader: Any, key: Any, epoch: int) -> Any:
    """One sample, prepared in this process with the randomness that it has in `epoch`."""
    epochs = loader._epochs
    if epochs.source.streams:
        raise ConfigError("debug needs a map-style dataset")
    with generators_kept():
        if epochs.seed is None:
            loader._draw()
        return prepare_one(loader._recipe(), epochs.where(key, epoch), key)
