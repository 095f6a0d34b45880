"""Accelerate, two processes: a whole run that saves its state after every step, and runs that go on from some of them."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from ranks import report
from samples import BATCH, KEYWORDS, Noisy, facts_of, shown

from penstock import DataLoader
from penstock.integrations.accelerate import enable

EPOCHS = 2
SAMPLERS = {
    "generator": DataLoaderConfiguration(),
    "seedable": DataLoaderConfiguration(use_seedable_sampler=True),
}


def prepared(sampler: str, seed: int = 3) -> tuple[Any, Any, Any, Any]:
    set_seed(seed)
    accelerator = Accelerator(cpu=True, dataloader_config=SAMPLERS[sampler])
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(Noisy(), BATCH, shuffle=True, num_workers=2, seed=5, **KEYWORDS)
    return accelerator, *accelerator.prepare(model, optimizer, loader)


def whole_run(sampler: str, folder: Path) -> dict[str, Any]:
    accelerator, model, optimizer, loader = prepared(sampler)
    seen: list[Any] = []
    for epoch in range(EPOCHS):
        for batch in loader:
            accelerator.backward(model(batch["x"]).mean())
            optimizer.step()
            seen.append([epoch, *shown(batch)])
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


def main(folder: str) -> None:
    facts: dict[str, Any] = {"without": unprepared_for()}
    enable()  # the line that a user adds
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plain = Accelerator(cpu=True).prepare(torch.utils.data.DataLoader(Noisy(), BATCH))
        facts["plain"] = type(plain.base_dataloader).__module__
        for sampler in SAMPLERS:
            there = Path(folder) / sampler
            facts[sampler] = whole_run(sampler, there)
            facts[sampler]["rests"] = {
                step: rest_of_run(sampler, there, step, epoch) for step, epoch in {1: 0, 4: 1, 6: 1}.items()
            }
        facts["skipping"] = skipping("seedable", 3)
    facts["warnings"] = [str(warning.message) for warning in caught if "penstock" in warning.filename]
    report(folder, facts)
    Accelerator(cpu=True).end_training()


if __name__ == "__main__":
    main(sys.argv[1])
