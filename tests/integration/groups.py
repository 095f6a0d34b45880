"""Ranks of a real process group, in processes of their own on this machine."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANKS = 2


def facts_of_ranks(rank: Callable[..., None], folder: Path, *more: Any, within_s: float = 90.0) -> list[Any]:
    """Runs `rank(number, meeting, folder, *more)` for each; what they have written as `folder/number.json`."""
    context = multiprocessing.get_context("fork")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    ranks = [
        context.Process(target=rank, args=(number, str(folder / "meeting"), str(folder), *more))
        for number in range(RANKS)
    ]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(within_s)
            assert process.exitcode == 0
    finally:
        for process in ranks:
            process.kill()
            process.join()
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(RANKS)]
