"""The driver's queues are asked for before CUDA starts; real processes, since it is theirs to be asked once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import DataLoader, ImageFolder
from penstock.gpu import queues
from penstock.gpu.queues import ENOUGH, VARIABLE
from tests.lanes_on_cpu import CHAIN, photos

__all__ = ["photos"]

SAYS = f"import os, sys; from penstock.gpu.queues import too_few; print(os.environ['{VARIABLE}'], too_few())"
STARTS_CUDA = "import torch; torch.cuda.is_initialized = lambda: True; "
"""As far as anybody can tell: a machine without a GPU cannot start it."""


def said(program: str, **variables: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != VARIABLE} | variables
    run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_importing_the_package_asks_for_queues() -> None:
    assert said("import penstock; " + SAYS) == str(ENOUGH)


@pytest.mark.parametrize("number", ["1", "8", "many"])
def test_a_number_that_was_given_stays_and_explain_says_what_it_costs(number: str) -> None:
    answer = said("import penstock; " + SAYS, **{VARIABLE: number})
    assert answer.startswith(f"{number} {VARIABLE}={number}: files wait behind training")


def test_enough_queues_are_nothing_to_speak_of() -> None:
    assert said("import penstock; " + SAYS, **{VARIABLE: "32"}) == "32"


def test_whoever_started_cuda_before_is_told() -> None:
    answer = said(STARTS_CUDA + "import penstock; " + SAYS)
    assert "CUDA was started before penstock was imported" in answer
    assert f"{VARIABLE}={ENOUGH}" in answer


def test_cuda_that_starts_afterwards_is_in_time() -> None:
    assert said("import penstock, torch; " + STARTS_CUDA + SAYS) == str(ENOUGH)


@pytest.mark.usefixtures("cuda_seems_to_be_here")
def test_explain_says_that_there_are_too_few(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    options: dict[str, Any] = {"device": "cuda", "gpu_prep": "concurrent", "num_workers": 1}
    loader = DataLoader(ImageFolder(photos, CHAIN), **options)
    assert "the GPU helps" in loader.explain()
    assert "wait behind training" not in loader.explain()
    monkeypatch.setattr(queues, "IN_TIME", False)
    assert "with 8 queues: files wait behind training" in loader.explain()
