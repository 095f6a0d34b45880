"""Threads of the GPU lane when the program ends: none is left for the interpreter to meet on its way out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.lanes_on_cpu import photos

__all__ = ["photos"]

AT_THE_END = """
import atexit, sys, threading
from pathlib import Path
atexit.register(lambda: print([thread.name for thread in threading.enumerate() if "gpu" in thread.name]))
from torch.utils.data import default_collate
from penstock import ImageFolder
from tests.lanes_on_cpu import CHAIN, prep_of
prep = prep_of(ImageFolder(Path(sys.argv[1]), CHAIN), 0.5)
prep.lane.begin(default_collate([prep.dataset[0]]), spare_known=True)
prep.lane.itself = prep.lane  # as the traceback of an error can hold it
print(sum("gpu" in thread.name for thread in threading.enumerate()))
"""


def test_stations_end_before_the_interpreter_does(photos: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", AT_THE_END, str(photos)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.stdout.split("\n")[:2] == ["2", "[]"], ended.stderr[-2000:]
    assert ended.returncode == 0
