"""`penstock run --compare`: run a program with both loaders and compare. This process imports torch only to gather ranks."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from penstock.cli.display import Display, make_display
from penstock.cli.program import Program
from penstock.cli.ranks import Rank, say, this_rank, together
from penstock.cli.table import table, too_few_steps
from penstock.cli.watched import Result, WatchedRun, measure

ENGINES = ("penstock", "torch")
"""Ours first: then the page cache is warm for torch's run, not for ours."""


def compare(program: Program, steps: int | None, report: Path | None = None, keep: Path | None = None) -> int:
    """Run both and print the comparison. report: path of the page.  keep: path of our run's trace."""
    rank = this_rank()
    with contextlib.ExitStack() as stack:
        trace = None
        if keep is not None and rank.number == 0:
            trace = str(keep.absolute())
        elif report is not None and rank.number == 0:
            trace = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "trace.json")
        results: dict[str, Result] = {}
        display = stack.enter_context(Display() if rank.number else make_display(steps))
        for run, engine in enumerate(ENGINES):
            job = WatchedRun(
                engine=engine, run=run, steps=steps, trace=trace if engine == "penstock" else None
            )
            results[engine] = measure(program, job, display)
            if problem := problem_of(program.script, results[engine]):
                display.close()
                say(rank, problem)
                return 1
        display.close()
        told = all_ranks(rank, results)
        if told is None:
            return 0
        (torchs, ours), note = told
        print(table(torchs, ours))
        if results["penstock"].adoption:
            note = [*note, results["penstock"].adoption]
        for line in note:
            print(line)
        if report is not None:
            write_page(report, trace, program.script, torchs, ours)
    return 0


def all_ranks(rank: Rank, results: dict[str, Result]) -> tuple[tuple[Result, Result], list[str]] | None:
    """Return both runs merged over all ranks, and lines about that; None on ranks other than 0."""
    given = rank.gather({engine: asdict(result) for engine, result in results.items()})
    if not given:
        return None
    there = [one for one in given if one is not None]
    torchs, ours = (merged([Result(**one[engine]) for one in there]) for engine in ("torch", "penstock"))
    note = []
    if len(there) > 1:
        note.append(
            f"\n{len(there)} ranks: samples/s, batches and memory are their sums, the waiting share their mean."
        )
    elif rank.world > 1:
        note.append(f"\nrank 0 of {rank.world} alone: the other ranks can be added up only under torchrun.")
    if len(there) < len(given):
        gone = ", ".join(str(number) for number, one in enumerate(given) if one is None)
        note.append(f"Missing, since they did not answer: rank {gone}.")
    return (torchs, ours), note


def merged(ranks: list[Result]) -> Result:
    """Merge the ranks' results; other fields are rank 0's."""
    first, *others = ranks
    if not others:
        return first
    facts = together([one.facts for one in ranks]) | {"ranks": len(ranks)}
    return replace(first, facts=facts, peak_bytes=sum(one.peak_bytes for one in ranks))


def write_page(report: Path, trace: str | None, script: str, torchs: Result, ours: Result) -> None:
    from penstock.report.html import write_summary
    from penstock.report.race import Race

    few = too_few_steps(torchs.facts, ours.facts)
    race = Race(
        title="Side by side",
        about=f"{script} with torch's DataLoader and with penstock's, one run each, start of the workers included.",
        rounds={"torch": [torchs.facts["samples_per_s"]], "penstock": [ours.facts["samples_per_s"]]},
        says=few,
    )
    found = trace if trace is not None and Path(trace).exists() else None
    write_summary(report, found, title=f"{Path(script).name} with penstock", races=[race])
    print(f"penstock: page written to {report}", file=sys.stderr)


def problem_of(script: str, result: Result) -> str | None:
    """Say why there is nothing to compare, or None."""
    if result.code:
        return (
            f"{script} failed with {result.engine}'s loader (exit code {result.code}):\n{result.output_tail}"
        )
    if not result.facts["batches"]:
        return f"{script} took no batch from a torch.utils.data.DataLoader: there is nothing to compare"
    return None
