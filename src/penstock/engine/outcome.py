"""What one ask came to: a batch, or the error that it is raised with."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.engine.troubles import unword
from penstock.lanes.pickles import loads


class Outcome(NamedTuple):
    """What one ask came to."""

    batch: Any
    error: bytes

    def result(self) -> Any:
        if self.error:
            raise_error(self.error)
        return self.batch


def raise_error(data: bytes) -> None:
    """Raise what a worker packed (by torch's rules for types) or what the engine found."""
    if data[:1] == b"J":
        raise unword(data)
    wrapped, note = loads(data[1:])
    try:
        wrapped.reraise()
    except BaseException as exc:
        exc.add_note(note)
        raise
