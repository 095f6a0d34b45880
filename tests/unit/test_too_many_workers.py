"""Torch's warning of more workers than cores comes once, not with every loader, epoch and rank."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import warnings
import penstock
warnings.simplefilter("always")
for workers in (3000, 4000):
    loader = penstock.DataLoader(range(4), num_workers=workers)
    loader.num_workers = 1  # so many are not started
    for _ in range(2):
        list(loader)
    loader.num_workers = workers
    loader.check_worker_number_rationality()
"""


def said(**environment: str) -> str:
    names = {
        name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "PYTHONWARNINGS")
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=names | environment
    )
    return done.stderr


def test_it_comes_once_in_a_process() -> None:
    assert said().count("worker processes in total") == 1


def test_of_several_ranks_on_a_machine_the_first_says_it() -> None:
    assert said(LOCAL_RANK="0").count("worker processes in total") == 1
    assert said(LOCAL_RANK="1").count("worker processes in total") == 0
