"""Lightning, two processes: a whole run that saves checkpoints, and runs that go on from some of them.

Two loaders: one that Lightning builds anew around its own DistributedSampler, and one that is sharded already.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from ranks import report
from samples import BATCH, KEYWORDS, Noisy, facts_of, shown

from penstock import DataLoader

EPOCHS = 2
EVERY_STEP = "step{step}"
EVERY_EPOCH = "epoch{epoch}"


class Model(pl.LightningModule):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.options = options
        self.seen: list[Any] = []

    def train_dataloader(self) -> Any:
        return DataLoader(
            Noisy(), BATCH, shuffle=True, num_workers=2, seed=5, **KEYWORDS, **self.options
        )  # nothing else is needed

    def training_step(self, batch: Any, _: int) -> Any:
        self.seen.append([self.current_epoch, *shown(batch)])
        return self.layer(batch["x"]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)


def fit(folder: Path, options: dict[str, Any], resume: str | None = None) -> tuple[list[Any], Any]:
    model = Model(**options)
    saves = [
        ModelCheckpoint(
            folder, EVERY_STEP, every_n_train_steps=1, save_top_k=-1, auto_insert_metric_name=False
        ),
        ModelCheckpoint(folder, EVERY_EPOCH, every_n_epochs=1, save_top_k=-1, auto_insert_metric_name=False),
    ]
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=EPOCHS,
        callbacks=saves if resume is None else [],
        enable_checkpointing=resume is None,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(model, ckpt_path=None if resume is None else folder / f"{resume}.ckpt")
    return model.seen, trainer.train_dataloader


def main(folder: str) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    facts: dict[str, Any] = {}
    for name, options in {"injected": {}, "sharded": {"shard": "auto"}}.items():
        there = Path(folder) / name
        whole, loader = fit(there, options)
        facts[name] = {"whole": whole, "loader": facts_of(loader), "sampler": type(loader.sampler).__name__}
        # With the last batch of an epoch, in its middle, and after its end: Lightning treats these in different ways.
        facts[name]["rests"] = {
            resume: [*fit_facts(there, options, resume)] for resume in ("step4", "step6", "epoch0")
        }
    report(folder, facts)


def fit_facts(folder: Path, options: dict[str, Any], resume: str) -> tuple[list[Any], dict[str, Any]]:
    rest, loader = fit(folder, options, resume)
    return rest, facts_of(loader)


if __name__ == "__main__":
    main(sys.argv[1])
