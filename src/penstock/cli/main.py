"""`penstock run train.py …`, `penstock profile train.py …`, `penstock report trace.json`, `penstock cache warm …`, `penstock simulate cache …`: arguments in, exit code out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock import __version__
from penstock.cli.page import add_report, writable
from penstock.cli.profile import add_profile
from penstock.cli.program import Program
from penstock.cli.reuse import add_reuse
from penstock.cli.simulate import add_simulate
from penstock.cli.stores import add_cache
from penstock.errors import PenstockError

RUN = """\
Runs a program with torch's DataLoader replaced by penstock's, without an edit, and says at the end what limits it.
What stands behind the script belongs to the script."""
EPILOG = """\
examples:
  penstock run train.py --epochs 3
  penstock run --compare --steps 200 train.py --epochs 3
  penstock run --report page.html train.py
  torchrun --nproc-per-node 2 --no-python penstock run train.py"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="penstock", description="A drop-in PyTorch DataLoader, from the command line."
    )
    top.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    run = commands.add_parser(
        "run",
        help="run a program with torch's DataLoader replaced by penstock's",
        description=RUN,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument(
        "--compare",
        action="store_true",
        help="run it both ways and print samples/s, waiting share and memory of each",
    )
    run.add_argument(
        "--steps", type=positive, metavar="N", help="stop the program after N batches of all its loaders"
    )
    run.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write a trace of the busiest loader there, for ui.perfetto.dev and `penstock report`",
    )
    run.add_argument(
        "--report",
        type=Path,
        metavar="PAGE",
        help="write a page about the run there: timeline, waits, what limits it (one HTML file; with --compare also both loaders)",
    )
    run.add_argument("-m", dest="module", action="store_true", help="the script is a module's name")
    run.add_argument("script", help="a Python file, or with -m a module")
    run.add_argument("args", nargs=argparse.REMAINDER, metavar="…", help="arguments of the script")
    add_profile(commands)
    add_report(commands)
    add_reuse(commands)
    add_cache(commands)
    add_simulate(commands)
    return top


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        if options.command in ("profile", "report", "reuse", "cache", "simulate"):
            return int(options.act(options))
        program = Program(script=options.script, args=tuple(options.args), module=options.module)
        for file in (options.report, options.trace):
            if file is not None:
                writable(file)
        if options.compare:
            from penstock.cli.both import compare

            return compare(program, options.steps, options.report, options.trace)
        from penstock.cli.once import run  # imports torch; other commands need not wait for that

        return run(program, options.steps, options.report, options.trace)
    except PenstockError as exc:
        print(f"penstock: {exc}", file=sys.stderr)
        return 2
