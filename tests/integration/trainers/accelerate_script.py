"""Accelerate, two processes: a whole run that saves its state here and there, and runs that go on from some of them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate.data_loader
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from ranks import report
from samples import BATCH, KEYWORDS, Noisy, facts_of, shown
from torch.utils.data import RandomSampler

from penstock import ConfigError, DataLoader
from penstock.integrations.accelerate import enable

EPOCHS = 2
RESUMED = {1: 0, 4: 1, 6: 1}
"""Steps after which the state is saved, and the epoch that then goes on."""
SAMPLERS = {
    "generator": DataLoaderConfiguration(),
    "seedable": DataLoaderConfiguration(use_seedable_sampler=True),
    "seeded": DataLoaderConfiguration(),
}
"""In the first two the order is that of a sampler of the user's, which Accelerate gives a generator, or replaces by one with a seed."""


def prepared(sampler: str, seed: int = 3) -> tuple[Any, Any, Any, Any]:
    set_seed(seed)
    accelerator = Accelerator(cpu=True, dataloader_config=SAMPLERS[sampler])
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    order = {"shuffle": True} if sampler == "seeded" else {"sampler": RandomSampler(Noisy())}
    loader = DataLoader(Noisy(), BATCH, num_workers=2, seed=5, **order, **KEYWORDS)  # type: ignore[arg-type]
    return accelerator, *accelerator.prepare(model, optimizer, loader)


def whole_run(sampler: str, folder: Path) -> dict[str, Any]:
    accelerator, model, optimizer, loader = prepared(sampler)
    seen: list[Any] = []
    for epoch in range(EPOCHS):
        for batch in loader:
            accelerator.backward(model(batch["x"]).mean())
            optimizer.step()
            seen.append([epoch, *shown(batch)])
            if len(seen) in RESUMED:
                accelerator.save_state(str(folder / str(len(seen))))
    return {"whole": seen, "loader": facts_of(loader.base_dataloader)}


def rest_of_run(sampler: str, folder: Path, step: int, epoch: int) -> list[Any]:
    accelerator, _, _, loader = prepared(
        sampler, seed=100 + step
    )  # the checkpoint, not luck, must bring the order back
    accelerator.load_state(str(folder / str(step)))
    seen = [[now, *shown(batch)] for now in range(epoch, EPOCHS) for batch in loader]
    return [seen, facts_of(loader.base_dataloader)]


def skipping(sampler: str, batches: int) -> list[Any]:
    accelerator, _, _, loader = prepared(sampler)
    rest = accelerator.skip_first_batches(loader, batches)
    length = len(rest)
    return [[[0, *shown(batch)] for batch in rest], facts_of(rest.base_dataloader), length]


def unprepared_for() -> dict[str, Any]:
    """What happens without the one line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = Accelerator(cpu=True).prepare(DataLoader(Noisy(), BATCH))
    return {
        "warnings": [str(warning.message) for warning in caught if "penstock" in str(warning.message)],
        "built": type(loader.base_dataloader).__module__,
    }


def refused(what: Callable[[], object]) -> str:
    try:
        what()
    except ConfigError as exc:
        return str(exc)
    return ""


def with_a_name_missing() -> None:
    """As if this were an Accelerate that builds its loaders in another way."""
    shard = accelerate.data_loader.DataLoaderShard
    del accelerate.data_loader.DataLoaderShard
    try:
        enable()
    finally:
        accelerate.data_loader.DataLoaderShard = shard


def main(folder: str) -> None:
    facts: dict[str, Any] = {"without": unprepared_for(), "missing": refused(with_a_name_missing)}
    enable()  # the line that a user adds
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator = Accelerator(cpu=True)
        plain = accelerator.prepare(torch.utils.data.DataLoader(Noisy(), BATCH))
        facts["plain"] = type(plain.base_dataloader).__module__
        facts["shard"] = refused(lambda: accelerator.prepare(DataLoader(Noisy(), shard=(0, 2), seed=1)))
        placed = accelerator.prepare(DataLoader(Noisy(), BATCH, device="meta"))
        facts["device"] = str(placed.base_dataloader.device)
        for sampler in SAMPLERS:
            there = Path(folder) / sampler
            facts[sampler] = whole_run(sampler, there)
            facts[sampler]["rests"] = {
                step: rest_of_run(sampler, there, step, epoch) for step, epoch in RESUMED.items()
            }
        facts["skipping"] = {sampler: skipping(sampler, 3) for sampler in ("seedable", "seeded")}
    facts["warnings"] = [str(warning.message) for warning in caught if "penstock" in warning.filename]
    report(folder, facts)
    Accelerator(cpu=True).end_training()


if __name__ == "__main__":
    main(sys.argv[1])
