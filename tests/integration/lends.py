"""Tests of lent cores: what they turn on, and what they must leave behind."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest

from tests.cache_jobs import named
from tests.fault.programs import until


def lending_in_a_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let loaders lend, in a group of this test's own; afterwards the node process and its threads must end."""
    monkeypatch.setenv("PENSTOCK_LENDING", "1")
    monkeypatch.setenv("PENSTOCK_GROUP", str(uuid.uuid4()))
    yield
    until(lambda: not named("penstock node"), within_s=10.0, why="a node does not end")
    until(
        lambda: all(one.name != "penstock lending" for one in threading.enumerate()),
        within_s=5.0,
        why="a thread does not end",
    )
