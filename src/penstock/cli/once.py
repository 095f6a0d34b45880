"""`penstock run`: a program once, with our loader, and what limits it at the end."""

from __future__ import annotations

import sys

from penstock.cli.meter import Meter, Record
from penstock.cli.program import Program
from penstock.cli.script import run as run_program

SHOWN = 5
"""Loaders that get a line at the end of a run: those with the most batches."""


def run(program: Program, steps: int | None) -> int:
    meter = Meter(steps=steps)
    code = run_program(program, meter)
    sys.stdout.flush()
    if meter.first_s is not None or not code:  # a program that failed before its first loader has said enough
        for line in closing_lines(program.script, meter):
            print(f"penstock: {line}", file=sys.stderr)
    return code


def closing_lines(script: str, meter: Meter) -> list[str]:
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
