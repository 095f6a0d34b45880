"""A loader in one line: its `repr`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from penstock.client.arguments import TorchArguments
from penstock.config import LoaderConfig
from penstock.epochs.epochs import Epochs

SAID = ("seed", "shard")
"""Keywords with their own wording in the line."""


def in_words(config: LoaderConfig, given: TorchArguments, epochs: Epochs, auto: int) -> str:
    """Return the line. `auto`: the latest worker count of num_workers="auto"; 0 if a number was given."""
    workers = given.num_workers
    follows = " (auto)" if auto and auto == workers else ""
    parts = [
        [f"{type(given.dataset).__name__}{length_of(given.dataset)}"],
        [*batches_of(given), *order_of(given, epochs)],
        [f"{workers} worker{'' if workers == 1 else 's'}{follows}" if workers else "no workers"],
        others(config),
    ]
    return "; ".join(", ".join(part) for part in parts if part)


def length_of(dataset: Any) -> str:
    try:
        return f" of {len(dataset):,} samples"
    except Exception:  # noqa: BLE001 - the user's own code, or none
        return ""


def batches_of(given: TorchArguments) -> list[str]:
    if given.batch_sampler is None:
        return ["single samples"]
    if given.batch_size is None:
        return [f"batches of {type(given.batch_sampler).__name__}"]
    return [f"batches of {given.batch_size}{', the last dropped if incomplete' if given.drop_last else ''}"]


def order_of(given: TorchArguments, epochs: Epochs) -> list[str]:
    """Describe the order of samples and what it depends on."""
    source = epochs.source.following(given.sampler, given.batch_sampler)
    if source.order == "streamed":
        return ["in the dataset's own order"]
    if source.order == "sampled":
        named = given.sampler if given.batch_size is not None else given.batch_sampler
        return [f"in the order of {type(named).__name__}"]
    rank = [f"rank {source.rank} of {source.world}"] if source.world > 1 else []
    drawn = "" if epochs.seed is None else f" (seed {epochs.seed})"
    return [f"shuffled{drawn}" if source.shuffles else f"in order{drawn}", *rank]


def others(config: LoaderConfig) -> list[str]:
    """Our keywords that differ from their defaults."""
    return [
        f"{field.name}={getattr(config, field.name)!r}"
        for field in fields(config)
        if field.name not in SAID and getattr(config, field.name) != field.default
    ]
