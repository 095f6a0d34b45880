"""The HF Trainer, two processes: a whole run that saves checkpoints, and runs that go on from some of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from ranks import report
from samples import BATCH, KEYWORDS, Noisy, facts_of, shown
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments

from penstock import ConfigError
from penstock.integrations.transformers import enable

EPOCHS = 2
SEED = 11


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen: list[Any] = []

    def forward(self, index: Any, noise: Any, x: Any) -> dict[str, Any]:
        self.seen.append(shown({"index": index, "noise": noise}))
        return {"loss": self.layer(x).mean()}


class Watched(Trainer):
    """Notes the loaders that batches come from: after a resume, the first is one that nobody else gets to see."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.used: dict[int, Any] = {}

    def get_batch_samples(self, epoch_iterator: Any, *args: Any, **kwargs: Any) -> Any:
        loader = epoch_iterator.gi_frame.f_locals["self"].base_dataloader
        self.used[id(loader)] = loader
        return super().get_batch_samples(epoch_iterator, *args, **kwargs)


def train(folder: Path, resume: int | None = None) -> dict[str, Any]:
    model = Model()
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=BATCH,
        num_train_epochs=EPOCHS,
        dataloader_num_workers=2,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
        save_strategy="steps" if resume is None else "no",
        save_steps=1,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=True,
        seed=SEED,
    )
    trainer = Watched(model, arguments, data_collator=default_collate, train_dataset=Noisy())
    trainer.train(resume_from_checkpoint=None if resume is None else str(folder / f"checkpoint-{resume}"))
    done = resume or 0
    per_epoch = trainer.state.max_steps // EPOCHS
    seen = [[step // per_epoch, *batch] for step, batch in enumerate(model.seen, done)]
    return {"seen": seen, "loaders": [facts_of(loader) for loader in trainer.used.values()]}


def main(folder: str) -> None:
    facts: dict[str, Any] = {}
    try:
        enable(prefetch_factor=4)
    except ConfigError as exc:
        facts["refused"] = str(exc)
    enable(**KEYWORDS)  # the line that a user adds
    there = Path(folder) / "checkpoints"
    facts["whole"] = train(there)
    facts["rests"] = {step: train(there, step) for step in (2, 4, 7)}
    report(folder, facts)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
