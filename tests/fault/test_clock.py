"""A wall clock that jumps changes nothing: only monotonic clocks are read where something is waited for or decided."""

from __future__ import annotations

import ast
from pathlib import Path

import penstock

SOURCES = Path(penstock.__file__).parent
WALL = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}
SHOWN_ONLY = {"report", "cli"}
"""Packages that may tell their reader the date."""
DATED = {"measure/metric_store.py"}
"""Files that outlive a run: only the date says how old their rows are, and a wrong one costs a profile."""


def test_no_decision_reads_the_wall_clock() -> None:
    found = []
    for file in sorted(SOURCES.rglob("*.py")):
        name = file.relative_to(SOURCES)
        if name.parts[0] in SHOWN_ONLY or str(name) in DATED:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in WALL:
                    found.append(f"{file.relative_to(SOURCES)}:{node.lineno}: {module}.{name}")
                case ast.ImportFrom(module="time", names=names) if {n.name for n in names} & {
                    "time",
                    "time_ns",
                }:
                    found.append(f"{file.relative_to(SOURCES)}:{node.lineno}: from time import time")
    assert found == []
