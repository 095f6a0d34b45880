"""kill -9 of the training process, then a restart from its last checkpoint: the batches of an uninterrupted run, exactly."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import FULL
from tests.fault.datasets import Drawn, expected, same
from tests.fault.programs import Zygote

RUNS = 100 if FULL else 4
LENGTH, EPOCHS = 44, 2
OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 9}


@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize("run", range(RUNS))
def test_a_training_that_is_killed_again_and_again_sees_every_batch_once(
    run: int, persistent: bool, programs: Zygote, tmp_path: Path
) -> None:
    rng = random.Random(f"{run} {persistent}")
    state, log = tmp_path / "state.json", tmp_path / "log"
    kills = 0
    while True:
        program = programs.start(
            "tests.fault.jobs:resumable",
            state=str(state),
            log=str(log),
            epochs=EPOCHS,
            length=LENGTH,
            pause_s=0.002,
            num_workers=rng.choice([1, 2, 3]),
            persistent_workers=persistent,
            **OPTIONS,
        )
        assert program.line() == "ready"
        if kills < 4:
            time.sleep(0.05 + rng.random() * 0.25)
            program.signal(signal.SIGKILL)
            kills += 1
        code = program.wait()
        assert program.left(within_s=1.0) == []
        if code == 0:
            break
        assert code == -signal.SIGKILL, program.errors()
    assert same(
        logged(log), [batch for epoch in expected(Drawn(LENGTH), epochs=EPOCHS, **OPTIONS) for batch in epoch]
    )


def logged(log: Path) -> list[torch.Tensor]:
    """The batches that count: a later note on the same place replaces one whose checkpoint was never written."""
    notes: dict[tuple[int, int], Any] = {}
    for line in log.read_text().splitlines():
        if not line.endswith("}"):
            continue  # torn by the kill
        note = json.loads(line)
        notes[note["epoch"], note["batches"]] = torch.tensor(note["batch"], dtype=torch.float64)
    return [notes[key] for key in sorted(notes)]


def test_a_checkpoint_at_the_very_end_of_an_epoch_starts_the_next(programs: Zygote, tmp_path: Path) -> None:
    """The state with an epoch's last batch in hand goes on into no batches, then the next epoch: nothing is repeated and nothing left out."""
    state, log = tmp_path / "state.json", tmp_path / "log"
    for epochs in (1, 2):
        program = programs.start(
            "tests.fault.jobs:resumable",
            state=str(state),
            log=str(log),
            epochs=epochs,
            length=LENGTH,
            num_workers=2,
            **OPTIONS,
        )
        assert program.line() == "ready"
        assert program.line() == "done"
        program.signal(signal.SIGKILL)
        saved = json.loads(state.read_text())
        assert (saved["epoch"], saved["over"]) == (epochs - 1, True)
        assert saved["batches"] == len(logged(log)) // epochs
    assert same(
        logged(log), [batch for epoch in expected(Drawn(LENGTH), epochs=2, **OPTIONS) for batch in epoch]
    )
