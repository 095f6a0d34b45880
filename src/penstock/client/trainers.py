"""How trainers see a loader.

Lightning rebuilds a loader from its attributes, using the loader's class, so our keywords survive as attributes. Accelerate, and the HF
Trainer with it, reads torch's attributes only and builds torch's class: our engine and keywords would vanish silently.
`penstock.integrations` prevents that; without it, we warn.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torch.utils.data import Sampler

from penstock.config import KEYWORDS, LoaderConfig
from penstock.epochs.epochs import OrderSource
from penstock.epochs.feed import CHUNK
from penstock.epochs.progress import after_end, fresh_state
from penstock.plan.epoch import EpochPlan

OUTLIVES = ("kind", "length", "keyed", "sampler", "dataset")
"""Parts of a state that stay valid in the next epoch."""
LIGHTNING = ("lightning.pytorch.", "pytorch_lightning.")

CARRIED = "penstock_keywords"
"""The attribute that holds all keywords for Accelerate, once our integration is enabled."""


class Keywords(dict[str, Any]):
    """A loader's keywords, to be passed to the loader built from it."""

    shuffled_by_seed = False
    """Whether the order is our own shuffle with the user's seed: whoever shards it must keep it."""


def keywords_of(config: LoaderConfig, source: OrderSource) -> Keywords:
    found = Keywords({name: getattr(config, name) for name in KEYWORDS})
    found.shuffled_by_seed = config.seed is not None and source.order == "planned" and source.shuffles
    return found


class SeededOrder(Sampler[int]):
    """Our shuffle as a sampler, for trainers that shard batches themselves: a function of (seed, epoch)."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed, self.epoch = dataset, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[int]:
        plan = EpochPlan(
            length=len(self),
            batch_size=CHUNK,
            drop_last=False,
            shuffle=True,
            seed=self.seed,
            epoch=self.epoch,
        )
        for batch in range(plan.batches):
            yield from plan.keys(plan.positions(batch)).tolist()


class AskedByAccelerate:
    """The attribute `_is_accelerate_prepared`, which Accelerate reads just before it builds a loader from ours.

    Not a data descriptor, so Accelerate may still set the attribute on an instance.
    """

    def __get__(self, instance: object, owner: type) -> bool:
        if instance is not None and not keeps_engine(sys.modules.get("accelerate.data_loader")):
            warnings.warn(
                "Accelerate's prepare() builds a plain torch DataLoader from this one: penstock's engine, keywords and "
                "resume are lost. Call penstock.integrations.accelerate.enable() once, before prepare().",
                stacklevel=3,
            )
        return False


def keeps_engine(accelerate: Any) -> bool:
    """Return whether Accelerate rebuilds our loaders as ours."""
    if accelerate is None or CARRIED in getattr(accelerate, "_PYTORCH_DATALOADER_KWARGS", {}):
        return True
    built = getattr(accelerate, "DataLoader", None)  # `penstock run` has put ours there
    return getattr(built, "__module__", "").startswith("penstock.")


def as_trainers_mean(
    state: dict[str, Any], caller: FrameType | None, batches: Callable[[], int]
) -> dict[str, Any]:
    """Return the state as the trainer that loads it understands it.

    Lightning counts an epoch as done with its last batch: a checkpoint taken then resumes with the next epoch, and an empty iterator would
    use that epoch up. `batches` returns an epoch's batch count, or -1.
    """
    while caller is not None and caller.f_code.co_name == "load_state_dict":  # in a subclass
        caller = caller.f_back
    if caller is None or not caller.f_globals.get("__name__", "").startswith(LIGHTNING):
        return state
    if "over" in state:
        return after_end(state)
    if state.get("order") != "planned" and 0 < batches() <= state.get("batches", 0):
        kept: dict[str, Any] = {key: state[key] for key in OUTLIVES if key in state}
        return fresh_state(state["order"], state["seed"], state["epoch"] + 1, kept)
    return state
