"""`penstock report trace.json -o page.html`: make a page from a run's trace. Needs no torch."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError

ABOUT = """\
Makes one HTML page of a trace that DataLoader(trace="trace.json") wrote: timeline, waits, throughput, what limits the run.
The page fetches nothing: mail it, archive it, open it without a network."""


def add_report(commands: Any) -> None:
    command = commands.add_parser(
        "report",
        help="make a page of a trace",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("trace", type=Path, help="what DataLoader(trace=…) wrote")
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="PAGE",
        help="where the page goes; by default beside the trace, as .html",
    )
    command.add_argument("--title", help="the page's title; by default the name of the trace")
    command.set_defaults(act=report)


def report(options: argparse.Namespace) -> int:
    from penstock.report.html import write_summary

    page = options.output or options.trace.with_suffix(".html")
    if not options.trace.is_file():
        raise ConfigError(f"there is no trace {os.fspath(options.trace)!r}; DataLoader(trace=…) writes one")
    if page.absolute() == options.trace.absolute():
        raise ConfigError(
            f"the page would overwrite the trace {os.fspath(page)!r}; name another file with -o"
        )
    writable(page)
    write_summary(
        page, options.trace, title=options.title or f"{options.trace.name}: a run of penstock's DataLoader"
    )
    print(f"page written to {page}")
    return 0


def writable(file: Path) -> None:
    """Refuse an unwritable path before the work starts."""
    folder = file.absolute().parent
    if file.is_dir():
        raise ConfigError(f"{os.fspath(file)!r} is a folder; name a file in it")
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {os.fspath(folder)!r} for {file.name}")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise ConfigError(f"{os.fspath(file)!r} cannot be written: permission denied")
