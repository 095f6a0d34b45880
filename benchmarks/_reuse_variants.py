"""What `scripts/bench reuse_accuracy` compares: ways to prepare CIFAR-10, and loaders that do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from _cifar import ArrayDataset, Arrays

from penstock import DataLoader, Reuse
from penstock import transforms as T  # noqa: N812

SIDE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    title: str
    layers: int = 2
    """Of RandAugment, before crop and flip."""
    reuse: Mapping[str, Any] = field(default_factory=dict)
    """The fields of a `penstock.Reuse`; none: every sample is prepared anew."""


VARIANTS: Mapping[str, Variant] = {
    "standard": Variant(title="standard"),
    "r3": Variant(title="used 3 times", reuse={"times": 3}),
    "echo3": Variant(title="echoed 3 times", reuse={"times": 3, "split": 4}),
    "r2": Variant(title="used 2 times", reuse={"times": 2}),
    "simplified": Variant(title="simplified: crop and flip", layers=0),
    "one_layer": Variant(title="simplified: one layer", layers=1),
}
DEFAULT = ("standard", "r3", "echo3", "r2", "simplified")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What two trainings must have in common to be compared."""

    epochs: int
    batch: int
    lr: float
    """The highest learning rate, reached after the first fifth."""
    weight_decay: float
    magnitude: int
    """Of RandAugment, of 31."""
    padding: int
    """Pixels around an image before a part of 32 x 32 is taken."""
    limit: int | None
    """Images of each class; None: all."""


def chain_of(layers: int, settings: Settings) -> Any:
    """Layers are ops of their own, so that a split between them is possible. Images leave as bytes, and are scaled on the device."""
    augment = [T.RandAugment(1, settings.magnitude) for _ in range(layers)]
    return T.Compose(
        [*augment, T.RandomCrop(SIDE, padding=settings.padding), T.RandomHorizontalFlip(), T.ToImage()]
    )


def loader_of(name: str, arrays: Arrays, settings: Settings, *, seed: int, workers: int, device: str) -> Any:
    variant = VARIANTS[name]
    loader: Any = DataLoader(
        ArrayDataset(arrays.train, arrays.train_labels, chain_of(variant.layers, settings)),
        batch_size=settings.batch,
        shuffle=True,
        seed=seed,
        num_workers=workers,
        persistent_workers=True,
        drop_last=True,
        device=device,
        reuse=Reuse(**variant.reuse) if variant.reuse else None,
    )
    return loader


def split_of(loader: Any) -> int | None:
    """Ops whose result is kept; None where nothing is."""
    kept = loader.stats().get("reuse")
    return None if kept is None else int(kept["split"])
