"""A program that ends in the middle of an epoch, with batches under way to their device: it ends as if there were none, and leaves nobody behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

BROKEN_OFF = """
import sys, time
import torch
from penstock import DataLoader

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if index >= int(sys.argv[2]):
            time.sleep(60)
        return torch.zeros(3, int(sys.argv[1]), int(sys.argv[1]), dtype=torch.uint8)

loader = DataLoader(
    Images(), batch_size=64, num_workers=2, device="cpu", dtype=torch.float32, memory_format=torch.channels_last
)
batches = iter(loader)
for _ in range(1 + 4 * (int(sys.argv[1]) > 8)):
    next(batches)
print("seen", flush=True)
"""


@pytest.mark.parametrize(
    ("side", "fast", "dropped"),
    [(256, 4000, False), (256, 4000, True), (8, 64, False), (8, 64, True)],
    ids=["while copies are made", "iterator dropped", "while nothing comes", "iterator dropped then"],
)
def test_a_program_that_breaks_off_an_epoch_ends_well_and_at_once(
    side: int, fast: int, dropped: bool
) -> None:
    program = BROKEN_OFF + ("del batches\n" if dropped else "")
    with subprocess.Popen(
        [sys.executable, "-c", program, str(side), str(fast)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "seen\n"
            began = time.monotonic()
            _, said = job.communicate(timeout=50)
            took_s = time.monotonic() - began
            assert (job.returncode, said) == (0, "")
            assert took_s < 20
            until = time.monotonic() + 10
            while in_session(job.pid):
                assert time.monotonic() < until, "somebody is left"
                time.sleep(0.05)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)


def in_session(leader: int) -> bool:
    """Whether any process of the session is there."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True
