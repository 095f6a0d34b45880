"""Run a program as `python train.py …` would, with torch's DataLoader replaced before its first line."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Protocol

import torch.utils.data

from penstock.cli.meter import Enough
from penstock.cli.program import Program
from penstock.loader import DataLoader

TORCHS = torch.utils.data.DataLoader


def swap_loaders() -> None:
    """Replace torch's DataLoader under both of its names, for all later imports."""
    torch.utils.data.DataLoader = DataLoader  # type: ignore[misc]
    torch.utils.data.dataloader.DataLoader = DataLoader  # type: ignore[misc]


class Installs(Protocol):
    """Follows the loaders of a class."""

    def install(self, kind: type) -> None: ...


def run(program: Program, meter: Installs, *, engine: str = "penstock") -> int:
    """Run the program; return its exit code."""
    if engine == "penstock":
        swap_loaders()
        meter.install(DataLoader)
    else:
        os.environ["PENSTOCK_DISABLE"] = "1"  # a program that uses our loader already
        meter.install(TORCHS)
    sys.argv = [program.script, *program.args]
    sys.path[0] = str(Path.cwd() if program.module else Path(program.script).resolve().parent)
    try:
        if program.module:
            runpy.run_module(program.script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program.script, run_name="__main__")
    except Enough:
        return 0
    except SystemExit as exit_:
        return code_of(exit_)
    except KeyboardInterrupt:
        return 130
    except BaseException as exc:  # noqa: BLE001 - shown as Python shows it; what was measured is still worth a report
        traceback.print_exception(exc.with_traceback(without_ours(exc.__traceback__)))
        return 1
    return 0


def code_of(exit_: SystemExit) -> int:
    if exit_.code is None:
        return 0
    if isinstance(exit_.code, int):
        return exit_.code
    sys.stderr.write(f"{exit_.code}\n")
    return 1


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the program's first frame on."""
    whole = trace
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return whole if trace is None else trace
