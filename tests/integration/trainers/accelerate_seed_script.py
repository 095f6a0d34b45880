"""Accelerate, one process or two: loaders with `shuffle=True` and `seed=` in programs whose own seeds differ."""

from __future__ import annotations

import sys
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from ranks import report
from samples import BATCH, Noisy, shown
from torch.utils.data import RandomSampler

from penstock import DataLoader
from penstock.integrations.accelerate import enable

EPOCHS = 2
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "seedable": {"use_seedable_sampler": True},
    "seedable by its own seed": {"use_seedable_sampler": True, "data_seed": 4},
    "dispatched": {"dispatch_batches": True},
    "split": {"split_batches": True},
}


def orders(program_seed: int, workers: int = 0, **configuration: Any) -> list[Any]:
    """What a loader gives in a program that has set this seed."""
    set_seed(program_seed)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**configuration))
    batch = BATCH + 1 if "split_batches" in configuration else BATCH
    loader = accelerator.prepare(DataLoader(Noisy(), batch, shuffle=True, seed=0, num_workers=workers))
    return [[shown(batch) for batch in loader] for _ in range(EPOCHS)]


def skipped(program_seed: int) -> list[Any]:
    """The rest of epoch 1, by Accelerate's own way to resume."""
    set_seed(program_seed)
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(Noisy(), BATCH, shuffle=True, seed=0))
    loader.set_epoch(1)
    return [shown(batch) for batch in accelerator.skip_first_batches(loader, 2)]


def of_a_users_sampler(program_seed: int) -> list[Any]:
    """A sampler of the user's own is followed, so the program's seed decides."""
    set_seed(program_seed)
    dataset = Noisy()
    loader = DataLoader(dataset, BATCH, sampler=RandomSampler(dataset), seed=0)
    return [shown(batch)[0] for batch in Accelerator(cpu=True).prepare(loader)]


def main(folder: str) -> None:
    enable()
    facts: dict[str, Any] = {
        name: [orders(1, **given), orders(2, **given)] for name, given in CONFIGURATIONS.items()
    }
    facts["workers"] = [orders(1), orders(2, workers=2)]
    facts["skipped"] = skipped(3)
    facts["users"] = [of_a_users_sampler(1), of_a_users_sampler(2)]
    report(folder, facts)
    Accelerator(cpu=True).end_training()


if __name__ == "__main__":
    main(sys.argv[1])
