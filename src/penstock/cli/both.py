"""`penstock run --compare`: a program both ways, and the two runs side by side. This process never imports torch."""

from __future__ import annotations

import sys

from penstock.cli.display import make_display
from penstock.cli.program import Program
from penstock.cli.table import table
from penstock.cli.watched import Result, measure

ENGINES = ("penstock", "torch")
"""In this order, so that files both read are in the page cache for torch's run, not for ours."""


def compare(program: Program, steps: int | None) -> int:
    results: dict[str, Result] = {}
    with make_display(steps) as display:
        for engine in ENGINES:
            results[engine] = measure(program, engine, steps, display)
            if problem := problem_of(program.script, results[engine]):
                display.close()
                print(f"penstock: {problem}", file=sys.stderr)
                return 1
    print(table(results["torch"], results["penstock"]))
    if adoption := results["penstock"].adoption:
        print(adoption)
    return 0


def problem_of(script: str, result: Result) -> str | None:
    """Why there is nothing to compare, or None."""
    if result.code:
        return (
            f"{script} failed with {result.engine}'s loader (exit code {result.code}):\n{result.output_tail}"
        )
    if not result.facts["batches"]:
        return f"{script} took no batch from a torch.utils.data.DataLoader: there is nothing to compare"
    return None
