"""The outcome of one ask: a batch, or the error to raise for it."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.agent.troubles import unpacked, worded
from penstock.epochs.feed import Ask
from penstock.wire.pickles import loads


class Outcome(NamedTuple):
    """One ask's batch or packed error."""

    batch: Any
    error: bytes

    def result(self, ask: Ask) -> Any:
        if self.error:
            raise_error(self.error, ask)
        return self.batch


def raise_error(data: bytes, ask: Ask) -> None:
    """Raise a worker's packed exception (by torch's rules for types) or a failure the engine found."""
    trouble = unpacked(data)
    if trouble is not None:
        at = max(0, trouble.ordinal)
        key = repr(ask.keys[at]) if at < len(ask.keys) else "?"
        position = ask.first + at * ask.stride
        raise worded(trouble, key=key, epoch=ask.epoch, position=position, batch=ask.batch)
    wrapped, notes = loads(data[1:])
    try:
        wrapped.reraise()
    except BaseException as exc:
        for note in notes:
            exc.add_note(note)
        raise
