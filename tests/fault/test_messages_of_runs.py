"""Golden tests of what a run says, to its caller and to the log, when something fails in a real worker.

Process ids and times, which differ from run to run, are replaced by `N`.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import DataLoader, errors
from tests.fault.datasets import Drawn, Harmful, Stream
from tests.fault.test_bad_samples import Broken


def neutral(text: str) -> str:
    """Without what differs from run to run."""
    text = re.sub(r"\(pid \d+\)", "(pid N)", text)
    text = re.sub(r"silent for [\d.]+ s", "silent for N s", text)
    text = re.sub(r"worker \d+", "worker N", text)
    text = re.sub(r"0x[0-9a-f]+", "0xN", text)
    return re.sub(r'File "[^"]*/', 'File "', re.sub(r"line \d+", "line N", text))


RUN: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "seed": 1}


def raised(loader: DataLoader[Any]) -> str:
    """The error of the first epoch, with its notes."""
    with pytest.raises(Exception) as caught:
        list(loader)
    error = caught.value
    return neutral("\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])]))


def test_a_sample_that_kills(tmp_path: Path) -> None:
    assert raised(DataLoader(Harmful("SIGKILL", 9, tmp_path, times=9), **RUN)) == (
        "WorkerDied: DataLoader worker exited unexpectedly: sample 9 (position 9 of epoch 0, batch 2) took down 3 workers in "
        "'prepare'; the last, worker N (pid N) was killed by SIGKILL. Each time a new worker was given its work. Look at it "
        "with loader.debug(9, 0), or leave such samples out with on_error='skip'."
    )


def test_a_sample_that_kills_and_has_a_name_for_a_key(tmp_path: Path) -> None:
    assert raised(DataLoader(Named(), sampler=["a", "b", "c"], batch_size=2, num_workers=1)) == (
        "WorkerDied: DataLoader worker exited unexpectedly: sample 'b' (position 1 of epoch 0, batch 0) took down 3 workers in "
        "'prepare'; the last, worker N (pid N) exited with code 7. Each time a new worker was given its work. Look at it "
        "with loader.debug('b', 0), or leave such samples out with on_error='skip'."
    )


class Named(Drawn):
    def __getitem__(self, name: Any) -> torch.Tensor:
        if name == "b":
            os._exit(7)
        return torch.zeros(1)


def test_a_sample_that_hangs(tmp_path: Path) -> None:
    text = raised(DataLoader(Harmful("spin", 9, tmp_path, times=9), hang_timeout=0.4, **RUN))
    assert text == (
        "WorkerHung: sample 9 (position 9 of epoch 0, batch 2) hung in 'prepare' on 2 workers, each of which was killed and "
        "replaced; the last, worker N (pid N) was silent for N s (stack below). Raise hang_timeout (or timeout) if it is "
        "merely slow. Look at it with loader.debug(9, 0), or leave such samples out with on_error='skip'.\n"
        "Current thread 0xN (most recent call first):\n"
        '  File "datasets.py", line N in spin_with_the_interpreter_lock\n'
        '  File "datasets.py", line N in <lambda>\n'
        '  File "datasets.py", line N in __getitem__'
    )


def test_the_users_own_exception_has_our_facts_as_a_note(tmp_path: Path) -> None:
    text = raised(DataLoader(Harmful("raise", 9, tmp_path), **RUN))
    assert text.startswith("ValueError: Caught ValueError in DataLoader worker process ")
    assert text.endswith(
        "ValueError: sample 9 is broken\n\n"
        "penstock: sample 9 (position 9 of epoch 0, batch 2) failed in 'prepare' on worker N"
    )


def test_a_collate_function_that_fails() -> None:
    assert raised(DataLoader(Drawn(), collate_fn=fail, **RUN)).endswith(
        "LookupError: no rule\n\npenstock: batch 0 of epoch 0 failed in 'collate' on worker N"
    )


def fail(samples: list[Any]) -> None:
    raise LookupError("no rule")


def test_a_collate_function_that_kills() -> None:
    assert raised(DataLoader(Drawn(), collate_fn=leave, **RUN)) == (
        "WorkerDied: DataLoader worker exited unexpectedly: batch 0 of epoch 0 took down 3 workers in 'collate'; the last, "
        "worker N (pid N) exited with code 8. Each time a new worker was given its work. Run with num_workers=0 to see it "
        "happen in this process."
    )


def leave(samples: list[Any]) -> None:
    os._exit(8)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_dataset_that_kills_whole_batches_at_once(on_error: str) -> None:
    """Which of the samples it was cannot be known, so none is left out for another's sake."""
    assert raised(DataLoader(Batched(os._exit), on_error=on_error, **RUN)) == (
        "WorkerDied: DataLoader worker exited unexpectedly: batch 1 of epoch 0 took down 3 workers in '__getitems__'; the "
        "last, worker N (pid N) exited with code 6. Each time a new worker was given its work. Run with num_workers=0 to see "
        "it happen in this process."
    )


def test_a_dataset_that_fails_for_whole_batches() -> None:
    assert raised(DataLoader(Batched(fail), **RUN)).endswith(
        "LookupError: no rule\n\npenstock: batch 1 of epoch 0 failed in '__getitems__' on worker N"
    )


class Batched(Drawn):
    def __init__(self, harm: Any) -> None:
        super().__init__()
        self.harm = harm

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        if 6 in indices:
            self.harm(6)
        return [self[index] for index in indices]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_of_another_shape(workers: int) -> None:
    text = raised(DataLoader(Shapes(), batch_size=4, num_workers=workers))
    assert text.startswith("RuntimeError: ")
    assert "stack expects each tensor to be equal size, but got [3] at entry 0 and [5] at entry 1" in text
    assert (
        "penstock: sample 9 has Tensor of float32 (5,) in sample['image'], where sample 8 has Tensor of float32 (3,): give "
        "all samples of a batch one form, or a collate_fn that brings them together"
    ) in text
    if workers:
        assert text.endswith("penstock: batch 2 of epoch 0 failed in 'collate' on worker N")


class Shapes(Drawn):
    def __getitem__(self, index: int) -> Any:
        return {"image": torch.ones(5 if index == 9 else 3), "label": index}


def test_an_iterable_dataset_that_fails() -> None:
    assert raised(DataLoader(Bad(), batch_size=4, num_workers=1)).endswith(
        "LookupError: no more\n\npenstock: batch 1 of epoch 0 failed in 'stream' on worker N"
    )


class Bad(Stream):
    def __iter__(self) -> Any:
        for number, sample in enumerate(super().__iter__()):
            if number == 6:
                raise LookupError("no more")
            yield sample


def test_a_worker_init_fn_that_fails() -> None:
    assert raised(DataLoader(Drawn(), worker_init_fn=fail, **RUN)).endswith(
        "LookupError: no rule\n\nwhile worker N started"
    )


def test_too_many_skips() -> None:
    assert raised(
        DataLoader(Broken({1, 2, 3}), on_error="skip", max_skipped=2, **{**RUN, "num_workers": 0})
    ) == (
        "TooManySkipped: 3 samples failed, more than max_skipped=2; the last: sample 3: KeyError: 'no label for 3'. "
        "loader.skipped() lists them; raise max_skipped to go on."
    )


def test_a_killed_agent_of_an_iterable_dataset() -> None:
    loader = DataLoader(Stream(pause_s=0.01), batch_size=4, num_workers=1)
    batches = iter(loader)
    next(batches)
    os.kill(loader.stats()["agent_pid"], signal.SIGKILL)
    with pytest.raises(errors.AgentDied) as caught:
        list(batches)
    assert neutral(str(caught.value)) == (
        "the agent (pid N) was killed by SIGKILL while its workers iterated an iterable dataset. What they had not yielded is "
        "lost: give the dataset state_dict() and load_state_dict(), or use a map-style dataset."
    )


# ---- what goes to the log


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [neutral(record.getMessage()) for record in caplog.records if record.name == "penstock"]


def test_a_replaced_worker_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        list(DataLoader(Harmful("_exit", 9, tmp_path), **RUN))
    assert logged(caplog) == ["worker N (pid N) exited with code 7; it is replaced"]


def test_a_worker_that_hung_is_logged_with_its_stack(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        list(DataLoader(Harmful("sleep", 9, tmp_path), hang_timeout=0.4, **RUN))
    assert logged(caplog) == [
        (
            "worker N (pid N) was silent for N s (stack below); it is replaced\n"
            "Current thread 0xN (most recent call first):\n"
            '  File "datasets.py", line N in <lambda>\n'
            '  File "datasets.py", line N in __getitem__'
        )
    ]


def test_a_lost_share_of_an_iterable_dataset_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    loader = DataLoader(Stream(pause_s=0.01), batch_size=4, num_workers=2)
    with caplog.at_level(logging.WARNING, "penstock"):
        batches = iter(loader)
        next(batches)
        os.kill(loader.stats()["worker_pids"][0], signal.SIGKILL)
        with pytest.raises(errors.WorkerDied):
            list(batches)
    assert logged(caplog) == ["worker N (pid N) was killed by SIGKILL; its share is lost"]


def test_a_new_agent_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    loader = DataLoader(Drawn(pause_s=0.002), **RUN)
    with caplog.at_level(logging.WARNING, "penstock"):
        batches = iter(loader)
        next(batches)
        os.kill(loader.stats()["agent_pid"], signal.SIGKILL)
        list(batches)
    assert logged(caplog) == [
        "the agent (pid N) was killed by SIGKILL; a new one goes on from the last delivered batch"
    ]
