"""The harness must be able to fail: each loader here departs from torch's in one way, and each is caught."""

from __future__ import annotations

import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from . import harness
from .datasets import Fails, Made
from .harness import Loader, drain, next_draws


class Departing(DataLoader[Any]):
    """Passes every batch of torch's loader through `change`."""

    def change(self, batches: Iterator[Any]) -> Iterator[Any]:
        return batches

    def __iter__(self) -> Any:
        return self.change(super().__iter__())


class LosesABatch(Departing):
    def change(self, batches: Iterator[Any]) -> Iterator[Any]:
        next(batches)
        return batches


class SwapsBatches(Departing):
    def change(self, batches: Iterator[Any]) -> Iterator[Any]:
        return iter(list(batches)[::-1])


class ChangesDtype(Departing):
    def change(self, batches: Iterator[Any]) -> Iterator[Any]:
        return ({**b, "x": b["x"].double()} for b in batches)


class ChangesStrides(Departing):
    def change(self, batches: Iterator[Any]) -> Iterator[Any]:
        return ({**b, "x": b["x"].t().contiguous().t()} for b in batches)


class ReordersKeys(Departing):
    def change(self, batches: Iterator[Any]) -> Iterator[Any]:
        return (dict(reversed(b.items())) for b in batches)


class ChangesListToTuple(Departing):
    def change(self, batches: Iterator[Any]) -> Iterator[Any]:
        return ({**b, "name": tuple(b["name"])} for b in batches)


class ReusesMemory(Departing):
    def change(self, batches: Iterator[Any]) -> Iterator[Any]:
        held: Any = None
        for batch in batches:
            if held is None:
                held = batch
            held["x"].copy_(batch["x"])
            yield held


class DrawsFromTorch(Departing):
    def change(self, batches: Iterator[Any]) -> Iterator[Any]:
        torch.rand(())
        return batches


class DrawsFromPython(Departing):
    def change(self, batches: Iterator[Any]) -> Iterator[Any]:
        random.random()
        return batches


class Warns(Departing):
    def change(self, batches: Iterator[Any]) -> Iterator[Any]:
        warnings.warn("something is odd", stacklevel=2)
        return batches


class LeavesAProcess(Departing):
    started: list[subprocess.Popen[bytes]] = []  # noqa: RUF012  (ended by the test)

    def change(self, batches: Iterator[Any]) -> Iterator[Any]:
        self.started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return batches


def sample(key: int) -> dict[str, Any]:
    return {"x": torch.full((2,), key, dtype=torch.float32), "name": f"sample {key}"}


def plain_case(loader_class: Loader) -> object:
    loader = loader_class(Made(8, sample), batch_size=2)
    return [drain(loader), next_draws()]


@pytest.mark.parametrize(
    "wrong",
    [
        LosesABatch,
        SwapsBatches,
        ChangesDtype,
        ChangesStrides,
        ReordersKeys,
        ChangesListToTuple,
        ReusesMemory,
        DrawsFromTorch,
        DrawsFromPython,
        Warns,
    ],
)
def test_a_loader_that_departs_from_torchs_is_caught(wrong: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "subject", lambda: wrong)
    with pytest.raises(AssertionError, match=r"ours differs|changed after it was delivered"):
        harness.assert_same(plain_case)


def test_a_process_left_behind_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "subject", lambda: LeavesAProcess)
    monkeypatch.setattr(harness, "SUBJECT_IS_TORCH", False)
    with pytest.raises(AssertionError, match=r"left behind: .*time.sleep"):
        harness.assert_same(plain_case)
    LeavesAProcess.started.pop().wait()


def raising(change: Callable[[Exception], Exception]) -> Loader:
    class Raises(Departing):
        def change(self, batches: Iterator[Any]) -> Iterator[Any]:
            changed: Exception
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                except Exception as exc:
                    changed = change(exc)
                    break
                yield batch
            assert not list(
                batches
            )  # torch needs 5 s to end the workers of an unfinished iterator in a cycle
            raise changed

    return Raises


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "change",
    [
        lambda exc: RuntimeError(*exc.args),
        lambda exc: ValueError("something went wrong"),
        lambda exc: ValueError(str(exc).replace("fail_further_down", "somewhere").replace("too bad", "bad")),
    ],
)
def test_an_exception_of_another_type_message_or_traceback_is_caught(
    change: Callable[[Exception], Exception], num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "subject", lambda: raising(change))
    with pytest.raises(AssertionError, match="ours differs"):
        harness.assert_same(
            lambda L: drain(
                L(Fails(6, [5], lambda k: ValueError(f"too bad: {k}")), 2, num_workers=num_workers)
            )
        )


def test_torchs_loader_agrees_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "subject", lambda: DataLoader)
    harness.assert_same(plain_case)
