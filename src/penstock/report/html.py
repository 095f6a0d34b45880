"""A run on one page: `write_summary` draws a trace and the loader's numbers into one self-contained HTML file.

The page fetches no script, font or picture: it can be mailed, archived and opened offline.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from penstock.measure.environment import environment, usable_cores
from penstock.policy.diagnosis import diagnose
from penstock.report import charts, timeline
from penstock.report.facts import facts
from penstock.report.race import Race, bars
from penstock.report.reading import RunRecord, Trace, percentile, read_trace
from penstock.report.style import STYLE
from penstock.report.svg import in_time, thousands

SHOWN_FAULTS = 20


def write_summary(
    path: str | os.PathLike[str],
    trace_path: str | os.PathLike[str] | None,
    stats: Mapping[str, Any] | None = None,
    *,
    title: str = "A run of penstock's DataLoader",
    diagnosis: str | None = None,
    races: Sequence[Race] = (),
    checks: Sequence[tuple[bool, str]] = (),
    notes: Sequence[str] = (),
) -> None:
    """Write the page to `path`.

    trace_path: the file of `DataLoader(trace=…)`; None for a page of numbers only.
    stats: `loader.stats()`; by default the trace's.  diagnosis: `loader.diagnose()`; by default that of the stats or the trace.
    races: loaders measured side by side.  checks: sentences found true or false.  notes: further lines.
    """
    trace = Trace(run=RunRecord(), stats={}) if trace_path is None else read_trace(trace_path)
    if diagnosis is None:
        diagnosis = trace.diagnosis if stats is None else diagnose(stats, cores=usable_cores())
    name = "" if trace_path is None else Path(trace_path).name
    numbers = trace.stats if stats is None else stats
    # Given stats come from a run in this process.
    where = trace.environment or ({} if stats is None else environment())
    parts = [
        "<!DOCTYPE html>\n",
        '<html lang="en"><head><meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>",
        f"<header><h1>{escape(title)}</h1><p>{datetime.now(UTC):%Y-%m-%d %H:%M} UTC</p></header>",
        tiles(trace.run, numbers) if numbers else "",
        said(diagnosis),
        checked(checks),
        *(compared(race) for race in races),
        timelines(trace.run, name),
        waits(trace.run),
        listed(notes),
        table_of(numbers, where),
        "<footer>Made by penstock, a drop-in PyTorch DataLoader.</footer></main></body></html>\n",
    ]
    Path(path).write_text("".join(parts), "utf-8")


def section(heading: str, about: str, *parts: str) -> str:
    told = f'<p class="about">{escape(about)}</p>' if about else ""
    return f"<section><h2>{escape(heading)}</h2>{told}{''.join(parts)}</section>"


def tiles(run: RunRecord, stats: Mapping[str, Any]) -> str:
    elapsed = stats["elapsed_s"]
    shown = [
        (thousands(stats["samples"] / elapsed) if elapsed else "none", "samples per second"),
        (f"{stats['wait_share']:.0%}", "of the time waited, the start included"),
        (thousands(stats["batches"]), "batches delivered"),
        (str(stats["workers"]), "worker" if stats["workers"] == 1 else "workers"),
        (str(stats["restarts"]), "worker replaced" if stats["restarts"] == 1 else "workers replaced"),
    ]
    if run.waits:
        shown.insert(2, (in_time(percentile((w.took_s for w in run.waits), 0.99)), "wait, 99th percentile"))
    drawn = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for value, name in shown
    )
    return f'<div class="tiles">{drawn}</div>'


def said(diagnosis: str) -> str:
    return f'<section class="diagnosis">{escape(diagnosis)}</section>' if diagnosis else ""


def checked(checks: Sequence[tuple[bool, str]]) -> str:
    if not checks:
        return ""
    items = "".join(f'<li class="{"good" if good else "bad"}">{escape(said)}</li>' for good, said in checks)
    return f'<section><h2>Checks</h2><ul class="checks">{items}</ul></section>'


def compared(race: Race) -> str:
    more = [f'<p class="verdict">{escape(race.says)}</p>'] if race.says else []
    under = []
    if any(len(rounds) > 1 for rounds in race.rounds.values()):
        under.append("Bars are medians; the bracket on each is the spread of its rounds.")
    if race.limit is not None:
        under.append(f"Limit: {race.limit_name}.")
    if under:
        more.append(f'<p class="about">{escape(" ".join(under))}</p>')
    return section(race.title, race.about, bars(race), *more)


def key(*entries: tuple[str, str]) -> str:
    items = "".join(
        f'<li><i style="background:var(--{colour})"></i>{escape(name)}</li>' for colour, name in entries
    )
    return f'<ul class="key">{items}</ul>'


def timelines(run: RunRecord, trace_name: str) -> str:
    if not run.waits and not run.tasks:
        return ""
    left_out = len(run.workers) - timeline.ROWS
    about = "The whole run: the stronger the colour, the larger the share of that moment."
    if left_out > 0:
        about += f" {left_out} more workers are in the trace."
    entries = [("wait", "training waits"), ("task", "worker busy")]
    if timeline.has_ready(run):
        entries.append(("fine", f"batches ready, at most {timeline.most_ready(run)}"))
    parts = [key(*entries), timeline.overview(run), happened(run)]
    near = timeline.close_up(run)
    if near:
        where = "around the first event" if run.moments else "from the middle of the run"
        entries = [("wait", "training waits"), ("task", "even batch"), ("task-2", "odd batch")]
        if any(task.kind == "collate" for task in run.tasks):
            entries.append(("collate", "collate"))
        parts += [f"<h3>Close up, {where}: every task</h3>", key(*entries), near]
    if run.waits:
        mean = f"samples per second; the dashed line is the mean from the first next() on, {thousands(charts.mean_rate(run))}"
        parts += ["<h3>Throughput</h3>", key(("task", mean)), charts.throughput(run)]
    if trace_name:
        parts.append(
            f'<p class="about">Every event is in {escape(trace_name)}: open it in ui.perfetto.dev or chrome://tracing.</p>'
        )
    return section("Timeline", about, *parts)


def happened(run: RunRecord) -> str:
    """List the events behind the timeline's numbered lines."""
    if not run.moments:
        return ""
    items = "".join(
        f"<li><b>{at}</b><span>{escape(f'after {in_time(moment.at_s)}: {moment.what}')}</span></li>"
        for at, moment in enumerate(run.moments[:SHOWN_FAULTS], 1)
    )
    return f'<ul class="faults">{items}</ul>'


def waits(run: RunRecord) -> str:
    if not run.waits:
        return ""
    about = "How long the training loop stood in next(). Waits of microseconds mean that the batch was there already."
    took = [wait.took_s for wait in run.waits]
    most = ", ".join(f"{share:.0%} within {in_time(percentile(took, share))}" for share in (0.5, 0.9, 0.99))
    stretch = charts.sequence_stretch(run)
    order = "each batch, in order" if stretch == 1 else f"the longest of every {stretch} batches, in order"
    pair = (
        f'<div class="pair"><div><h3>How many batches were waited for how long</h3>{charts.wait_histogram(run)}</div>'
        f"<div><h3>The wait for {escape(order)}</h3>{charts.wait_sequence(run)}</div></div>"
    )
    return section("Waits", f"{about} Of {len(took)} waits: {most}.", pair)


def listed(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return section("Loaders of this program", "", *(f'<p class="note">{escape(note)}</p>' for note in notes))


def table_of(stats: Mapping[str, Any], where: Mapping[str, str]) -> str:
    groups = facts(stats)
    if where:
        groups["Machine"] = dict(where)
    drawn = "".join(
        f"<section><h2>{escape(heading)}</h2>{table(shown)}</section>" for heading, shown in groups.items()
    )
    return f'<div class="facts">{drawn}</div>' if drawn else ""


def table(shown: Mapping[str, str]) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in shown.items()
    )
    return f"<table>{rows}</table>"
