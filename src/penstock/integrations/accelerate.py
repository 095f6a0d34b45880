"""Accelerate: run the loaders it builds from ours on our engine.

`Accelerator.prepare()` and `skip_first_batches()` do not keep a loader: they read torch's parameters off its attributes and build torch's
class from them. All of that goes through four names of `accelerate.data_loader`, which `enable()` replaces:

- `_PYTORCH_DATALOADER_KWARGS`, the attributes to carry over: ours are added under one name;
- `DataLoader`, the class to build: ours if these keywords arrive, else torch's;
- `DataLoaderShard`, the result: a subclass that passes the epoch to our loader, is saved by `save_state()`, and turns skipped batches
  into a resume, so that samples are augmented as in an uninterrupted run;
- `DataLoaderDispatcher`, the result if one process reads for all: a subclass that only passes our keywords.

Accelerate still shards and pads the data and places it on the device. The order is ours if the loader shuffles by itself with a `seed=`:
the same in every run, and the same as without Accelerate.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import RandomSampler

from penstock.client.trainers import CARRIED, SeededOrder
from penstock.config import KEYWORDS
from penstock.epochs.progress import fresh_state
from penstock.epochs.replay import chain_of
from penstock.epochs.shard import shared_seed
from penstock.errors import ConfigError, MissingExtra
from penstock.loader import DataLoader

try:
    from accelerate import PartialState  # type: ignore[import-untyped]
    from accelerate import data_loader as theirs
except ImportError as exc:
    raise MissingExtra(
        "this integration needs Accelerate 1.2 or later: pip install 'penstock[accelerate]'"
    ) from exc

REPLACED = ("_PYTORCH_DATALOADER_KWARGS", "DataLoader", "DataLoaderShard", "DataLoaderDispatcher")


def enable() -> None:
    """Make Accelerate rebuild penstock loaders as penstock loaders. Other loaders stay as they are."""
    install(None)


def install(keywords: dict[str, Any] | None) -> None:
    """Replace Accelerate's names. With `keywords`, other loaders become ours with these."""
    missing = [name for name in REPLACED if not hasattr(theirs, name)]
    if missing:
        raise ConfigError(
            f"this Accelerate builds its loaders in a way penstock does not know (no {', '.join(missing)} in "
            f"accelerate.data_loader): use a version that the documentation lists"
        )
    theirs._PYTORCH_DATALOADER_KWARGS[CARRIED] = keywords
    theirs.DataLoader = build
    theirs.DataLoaderShard = Shard
    theirs.DataLoaderDispatcher = Dispatcher


def build(dataset: Any, **kwargs: Any) -> Any:
    """Build a loader for Accelerate: ours if our keywords were carried over."""
    keywords = kwargs.pop(CARRIED, None)
    if keywords is None:
        return TorchDataLoader(dataset, **kwargs)
    if getattr(keywords, "shuffled_by_seed", False):
        keep_order(kwargs.get("batch_sampler") or kwargs.get("sampler"), dataset, keywords["seed"])
    if keywords["shard"] is not None:
        raise ConfigError(
            "shard together with Accelerate would shard twice: its prepare() divides the data by itself"
        )
    if keywords["device"] is not None:
        keywords = {**keywords, "device": PartialState().device}
    if keywords["seed"] is None:
        keywords = {**keywords, "seed": program_seed()}
    return DataLoader(dataset, **(kwargs | keywords))


def keep_order(sampler: Any, dataset: Any, seed: int) -> None:
    """Make Accelerate shard our order for this seed; its RandomSampler would draw from the program's generator."""
    for link in chain_of(sampler):
        if isinstance(getattr(link, "sampler", None), RandomSampler):
            link.sampler = SeededOrder(dataset, seed)


def program_seed() -> int:
    """Return the program's own seed, equal on all processes, so that a resumed run finds it again."""
    seed = torch.initial_seed() % 2**63
    return shared_seed(seed) if dist.is_available() and dist.is_initialized() else seed


class Shard(theirs.DataLoaderShard):  # type: ignore[misc]
    """Accelerate's loader of one process, around ours."""

    def __init__(self, dataset: Any, **kwargs: Any) -> None:
        self.passed = 0
        ours, skipping = carries(kwargs), kwargs.get("batch_sampler")
        if ours and isinstance(skipping, theirs.SkipBatchSampler):
            self.passed, kwargs["batch_sampler"] = skipping.skip_batches, skipping.batch_sampler
        super().__init__(dataset, **kwargs)
        if ours:
            self.use_stateful_dataloader = True  # ours is stateful

    def set_sampler(self, sampler: Any) -> None:
        """Ignore Accelerate's seedable sampler if the order is ours: that is the same everywhere already."""
        if not any(isinstance(link, SeededOrder) for link in chain_of(self.batch_sampler)):
            super().set_sampler(sampler)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        loader = self.base_dataloader
        if not isinstance(loader, DataLoader):
            return
        loader.set_epoch(epoch)
        if self.passed:
            start = fresh_state("sampled", None, epoch) | {"batches": self.passed}
            loader.load_state_dict(start)

    def __len__(self) -> int:
        return len(self.base_dataloader) - self.passed

    def _update_state_dict(self) -> None:
        super()._update_state_dict()
        sampler = self.get_sampler()
        if self.use_stateful_dataloader and isinstance(sampler, theirs.SeedableRandomSampler):
            self.dl_state_dict["sampler_seed"] = sampler.initial_seed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if not isinstance(self.base_dataloader, DataLoader):
            return
        self.dl_state_dict, self.iteration = state_dict, state_dict["epoch"]
        sampler = self.get_sampler()
        if "sampler_seed" in state_dict and isinstance(sampler, theirs.SeedableRandomSampler):
            sampler.initial_seed = state_dict["sampler_seed"]


class Dispatcher(theirs.DataLoaderDispatcher):  # type: ignore[misc]
    """Accelerate's loader that reads in one process for all, around ours."""

    def __init__(self, dataset: Any, **kwargs: Any) -> None:
        carries(kwargs)
        super().__init__(dataset, **kwargs)


def carries(kwargs: dict[str, Any]) -> bool:
    """Return whether our keywords are present; if so, disable torchdata's loader, which does not know them."""
    if kwargs.get(CARRIED) is None:
        kwargs.pop(CARRIED, None)
        return False
    kwargs["use_stateful_dataloader"] = False
    return True


def checked(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return all our keywords: those given, the others at their defaults."""
    unknown = ", ".join(sorted(set(keywords) - set(KEYWORDS)))
    if unknown:
        raise ConfigError(f"{unknown}: not a keyword of penstock's DataLoader that torch's does not have")
    return DataLoader(range(1), **keywords).penstock_keywords
