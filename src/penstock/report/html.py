"""A run on one page: `write_summary` draws a trace and the loader's numbers into one HTML file that needs nothing else.

No script, no font, no picture is fetched: the page can be mailed, archived, opened without a network.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from penstock.policy.diagnosis import diagnose
from penstock.report import charts, timeline
from penstock.report.environment import environment, usable_cores
from penstock.report.reading import Run, percentile, read_run
from penstock.report.style import STYLE
from penstock.report.svg import in_bytes, in_time, thousands

SHOWN_FAULTS = 20


def write_summary(
    path: str | os.PathLike[str],
    trace_path: str | os.PathLike[str] | None,
    stats: Mapping[str, Any],
    *,
    title: str = "A run of penstock's DataLoader",
    diagnosis: str | None = None,
    rates: Mapping[str, Sequence[float]] | None = None,
    checks: Sequence[tuple[bool, str]] = (),
) -> None:
    """Write the page to `path`.

    trace_path: what `DataLoader(trace=…)` wrote; None for a page of numbers only.
    stats: `loader.stats()`.  diagnosis: `loader.diagnose()`; by default made from the stats.
    rates: samples/s of each round of several loaders, drawn side by side, ours last.
    checks: sentences that were found true or false.
    """
    run = Run() if trace_path is None else read_run(trace_path)
    said = diagnose(stats, cores=usable_cores()) if diagnosis is None else diagnosis
    name = "" if trace_path is None else Path(trace_path).name
    Path(path).write_text(page(run, stats, title, said, rates or {}, checks, name), "utf-8")


def page(
    run: Run,
    stats: Mapping[str, Any],
    title: str,
    diagnosis: str,
    rates: Mapping[str, Sequence[float]],
    checks: Sequence[tuple[bool, str]],
    trace_name: str,
) -> str:
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = [
        "<!DOCTYPE html>\n",
        '<html lang="en"><head><meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>",
        f"<header><h1>{escape(title)}</h1><p>{when}</p></header>",
        tiles(run, stats),
        f'<section class="diagnosis">{escape(diagnosis)}</section>',
        checked(checks),
        compared(rates),
        timelines(run, trace_name),
        waits(run),
        numbers(stats),
        "</main></body></html>\n",
    ]
    return "".join(parts)


def section(heading: str, about: str, *parts: str) -> str:
    return (
        f'<section><h2>{escape(heading)}</h2><p class="about">{escape(about)}</p>{"".join(parts)}</section>'
    )


def wide(drawn: str) -> str:
    return f'<div class="wide">{drawn}</div>'


def tiles(run: Run, stats: Mapping[str, Any]) -> str:
    elapsed = stats["elapsed_s"]
    shown = [
        (thousands(stats["samples"] / elapsed) if elapsed else "none", "samples per second"),
        (f"{stats['wait_share']:.0%}", "of the time spent waiting"),
        (thousands(stats["batches"]), "batches delivered"),
        (str(stats["workers"]), "worker" if stats["workers"] == 1 else "workers"),
        (str(stats["restarts"]), "workers replaced"),
    ]
    if run.waits:
        shown.insert(2, (in_time(percentile((w.took_s for w in run.waits), 0.99)), "wait, 99th percentile"))
    drawn = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for value, name in shown
    )
    return f'<div class="tiles">{drawn}</div>'


def checked(checks: Sequence[tuple[bool, str]]) -> str:
    if not checks:
        return ""
    items = "".join(f'<li class="{"good" if good else "bad"}">{escape(said)}</li>' for good, said in checks)
    return f'<section><h2>Checks</h2><ul class="checks">{items}</ul></section>'


def compared(rates: Mapping[str, Sequence[float]]) -> str:
    if not rates:
        return ""
    about = "Samples per second in the same run, in turns. A dot is one round; the bar is the median; in brackets the spread."
    return section("Side by side", about, wide(charts.side_by_side(rates)))


def key(*entries: tuple[str, str]) -> str:
    items = "".join(
        f'<li><i style="background:var(--{colour})"></i>{escape(name)}</li>' for colour, name in entries
    )
    return f'<ul class="key">{items}</ul>'


def timelines(run: Run, trace_name: str) -> str:
    if not run.waits and not run.tasks:
        return ""
    left_out = len(run.workers) - timeline.ROWS
    about = "The whole run: the stronger the colour, the larger the share of that moment."
    if left_out > 0:
        about += f" {left_out} more workers are in the trace."
    entries = [("wait", "training waits"), ("task", "worker busy")]
    if timeline.has_ready(run):
        entries.append(("fine", "batches ready"))
    parts = [
        key(*entries),
        wide(timeline.overview(run)),
    ]
    if run.moments:
        said = "".join(
            f"<li>{escape(in_time(m.at_s))}: {escape(m.what)}</li>" for m in run.moments[:SHOWN_FAULTS]
        )
        parts.append(f'<ol class="faults">{said}</ol>')
    near = timeline.close_up(run)
    if near:
        where = "around the first event" if run.moments else "from the middle of the run"
        entries = [("wait", "training waits"), ("task", "even batch"), ("task-2", "odd batch")]
        if any(task.kind == "collate" for task in run.tasks):
            entries.append(("collate", "collate"))
        parts += [
            f"<h3>Close up, {where}: every task, with the number of its batch</h3>",
            key(*entries),
            wide(near),
        ]
    if run.waits:
        parts += ["<h3>Throughput, samples per second</h3>", wide(charts.throughput(run))]
    if trace_name:
        parts.append(
            f'<p class="about">Every event is in {escape(trace_name)}: open it in ui.perfetto.dev or chrome://tracing.</p>'
        )
    return section("Timeline", about, *parts)


def waits(run: Run) -> str:
    if not run.waits:
        return ""
    about = "How long the training loop stood in next(). Waits of microseconds mean that the batch was there already."
    pair = f'<div class="pair">{charts.wait_histogram(run)}{charts.wait_sequence(run)}</div>'
    return section("Waits", about, pair)


def numbers(stats: Mapping[str, Any]) -> str:
    facts = {name.replace("_", " "): shown(name, value) for name, value in stats.items()}
    return (
        '<div class="pair">'
        f"<section><h2>Counters</h2>{table(facts)}</section>"
        f"<section><h2>Environment</h2>{table(environment())}</section>"
        "</div>"
    )


def table(facts: Mapping[str, str]) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items()
    )
    return f"<table>{rows}</table>"


def shown(name: str, value: Any) -> str:
    """A counter as people read it; its name carries the unit."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {shown(name, part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(name, part) for part in value) or "none"
    if name.endswith("_s"):
        return in_time(value)
    if name.endswith("_share"):
        return f"{value:.1%}"
    if name.endswith("_bytes"):
        return in_bytes(value)
    return thousands(value) if isinstance(value, (int, float)) and "pid" not in name else str(value)
