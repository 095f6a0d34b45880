"""`penstock run`: run a program once with our loader, then say what limits it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from penstock.cli.meter import LoaderMeter, Record
from penstock.cli.program import Program
from penstock.cli.ranks import Rank, say, this_rank
from penstock.cli.script import run as run_program

SHOWN = 5
"""Loaders with a line at the end of a run: those with the most batches."""


def run(program: Program, steps: int | None, report: Path | None = None, trace: Path | None = None) -> int:
    """Run the program. report: path of the page.  trace: path of the busiest loader's trace."""
    rank = this_rank()
    # A job writes one page and one trace: rank 0's.
    report, trace = (None, None) if rank.number else (report, trace)
    # Absolute: the program may change its working directory.
    page, trace = report and report.absolute(), trace and trace.absolute()
    meter = LoaderMeter(steps=steps, traced=page is not None or trace is not None)
    code = run_program(program, meter)
    sys.stdout.flush()
    if meter.first_s is not None or not code:  # a program that failed before its first loader has said enough
        say(rank, *closing_lines(program.script, meter))
    busiest = meter.busiest()
    if trace is not None and busiest is not None:
        busiest.write_trace(trace)
    if page is not None and meter.first_s is not None:
        write_page(page, program.script, meter, rank)
        say(rank, f"page written to {report}")
    return code


def closing_lines(script: str, meter: LoaderMeter) -> list[str]:
    if meter.first_s is None:
        return [f"{script} iterated no torch.utils.data.DataLoader: nothing was replaced, nothing measured"]
    facts = meter.facts()
    busiest = sorted(meter.records, key=lambda record: -record.batches)
    adopted = dict.fromkeys(record.adoption for record in busiest if record.adoption)
    return [
        f"{meter.batches} batches, {facts['samples_per_s']:,.0f} samples/s, waited {facts['wait_share']:.0%} of the time",
        *(line_of(record) for record in busiest[:SHOWN]),
        *adopted,
        *([f"… and {len(busiest) - SHOWN} more loaders"] if len(busiest) > SHOWN else []),
    ]


def line_of(record: Record) -> str:
    return f"[{record.name}; {record.batches} batches] {record.diagnosis()}"


def write_page(report: Path, script: str, meter: LoaderMeter, rank: Rank) -> None:
    """Write a page with the busiest loader drawn and a line for each other."""
    from penstock.report.html import write_summary

    first, *others = sorted(meter.records, key=lambda record: -record.batches)
    title = f"{Path(script).name} with penstock" + (f", rank 0 of {rank.world}" if rank.world > 1 else "")
    notes = [f"Drawn here: {first.name}; {first.batches} batches."] if others else []
    notes += [line_of(record) for record in others[:SHOWN]]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        drawn = first.write_trace(trace)
        write_summary(report, trace if drawn else None, first.stats, title=title, notes=notes)
