"""Fork, forkserver and spawn, chosen as torch chooses them, and a dataset that lives in `__main__`.

A spawned worker imports torch, which takes seconds, so few cases start any.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import datasets
from .datasets import Made, Scaled, Sharded, keep
from .harness import SUBJECT_IS_TORCH, Loader, Raised, assert_same, attempt, drain

ROOT = Path(__file__).parents[3]
METHODS = ["fork", "spawn", "forkserver"]


class ParentsMark(Scaled):
    """Says what the worker's copy of a module holds: what the parent set there if forked, the initial value if not."""

    def __getitem__(self, key: int) -> Any:
        if key == 2:
            raise KeyError(f"no {key}")
        return key, self.scale, datasets.mark


@pytest.fixture
def _parents_mark() -> Iterator[None]:
    datasets.mark = 1
    yield
    datasets.mark = 0


@pytest.mark.usefixtures("_parents_mark")
@pytest.mark.parametrize("method", METHODS)
def test_workers_are_started_by_the_method_asked_for_and_their_errors_arrive(method: str) -> None:
    num_workers = 2 if method == "fork" else 1
    assert_same(
        lambda L: drain(L(ParentsMark(7), 2, num_workers=num_workers, multiprocessing_context=method))
    )


def test_a_context_object_is_as_good_as_its_name() -> None:
    context = multiprocessing.get_context("fork")
    assert_same(
        lambda L: drain(L(Scaled(5), 2, num_workers=2, multiprocessing_context=context, collate_fn=keep))
    )


def test_persistent_spawned_workers_serve_two_epochs_of_an_iterable_dataset() -> None:
    def case(loader_class: Loader) -> object:
        settings: dict[str, Any] = {"multiprocessing_context": "spawn", "persistent_workers": True}
        loader = loader_class(Sharded([3, 1]), 2, num_workers=1, **settings)
        return [drain(loader), drain(loader)]

    assert_same(case)


# A queue that torch's failed start left half made complains when it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("chosen_by", ["parameter", "default"])
def test_a_dataset_that_cannot_be_pickled_cannot_be_spawned(chosen_by: str) -> None:
    def case(loader_class: Loader) -> object:
        context = "spawn" if chosen_by == "parameter" else None
        dataset = Made(4, lambda k: k)
        outcome = attempt(
            lambda: next(iter(loader_class(dataset, 2, num_workers=1, multiprocessing_context=context)))
        )
        assert isinstance(outcome, Raised)
        return [outcome.type, "<lambda>" in outcome.text]

    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn" if chosen_by == "default" else before, force=True)
    try:
        assert_same(case, draws=False, warns=False)  # torch's hint is about its own processes
    finally:
        multiprocessing.set_start_method(before, force=True)


@pytest.fixture(scope="module")
def script_outcome() -> Any:
    command = [
        sys.executable,
        str(Path(__file__).with_name("main_script.py")),
        "torch" if SUBJECT_IS_TORCH else "ours",
    ]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_dataset_defined_in_the_main_script_loads_as_in_torch(script_outcome: Any, method: str) -> None:
    outcome, _ = script_outcome
    assert len(outcome["torch"][method]) >= 4
    assert outcome["ours"][method] == outcome["torch"][method]


def test_a_script_with_a_main_guard_prints_nothing_it_should_not(script_outcome: Any) -> None:
    assert "Traceback" not in script_outcome[1]
    assert "RuntimeWarning" not in script_outcome[1]
