"""Record the core's events and actions as JSON lines, so that a real run can be replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from enum import IntEnum
from pathlib import Path
from typing import Any, TextIO

from penstock.core import events as ev
from penstock.core.events import Action, Event, Kind
from penstock.core.state import CoreConfig


def encode(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"is": type(value).__name__, "of": [encode(item) for item in value]}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return int(value) if isinstance(value, (IntEnum, bool)) else value


def decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(decode(item) for item in value)
    if isinstance(value, dict) and "hex" in value:
        return bytes.fromhex(value["hex"])
    if isinstance(value, dict):
        fields = [decode(item) for item in value["of"]]
        found = getattr(ev, value["is"])(*fields)
        return found._replace(kind=Kind(found.kind)) if isinstance(found, ev.Task) else found
    return value


class Recorder:
    """Appends to a file; without one it does nothing."""

    def __init__(self, path: str, config: CoreConfig) -> None:
        self._file: TextIO | None = Path(path).open("a", encoding="utf-8") if path else None  # noqa: SIM115 - closed by close()
        self._write({"config": asdict(config)})

    def add(self, event: Event, actions: list[Action]) -> None:
        if self._file is not None:
            self._write([encode(event), [encode(action) for action in actions]])

    def _write(self, line: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_record(path: str | Path) -> Iterator[tuple[CoreConfig, list[tuple[Event, list[Action]]]]]:
    """Yield (config, [(event, actions), …]) for each agent that recorded into the file."""
    config: CoreConfig | None = None
    steps: list[tuple[Event, list[Action]]] = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if isinstance(row, dict):
            if config is not None:
                yield config, steps
            config, steps = CoreConfig.of(row["config"]), []
        else:
            steps.append((decode(row[0]), list(decode(row[1]))))
    if config is not None:
        yield config, steps
