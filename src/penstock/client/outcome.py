"""The outcome of one ask: a batch, or the error to raise for it."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

from penstock.agent.troubles import unpacked, worded
from penstock.epochs.feed import Ask
from penstock.torch_private import ExceptionWrapper
from penstock.wire.pickles import loads

TEXT = b"T"
"""Mark of an error that came as text, from another machine."""


class Outcome(NamedTuple):
    """One ask's batch or packed error."""

    batch: Any
    error: bytes
    seq: int = -1
    """The number by which the engine was asked for it."""

    def result(self, ask: Ask) -> Any:
        if self.error:
            raise_error(self.error, ask)
        return self.batch


def from_text(data: bytes) -> tuple[ExceptionWrapper, list[str]]:
    """Return an exception told as text. Its type is looked up among those imported here: nothing that another machine names is imported."""
    told = json.loads(data)
    module, _, name = str(told["type"]).partition(":")
    kind: Any = sys.modules.get(module)
    for part in name.split("."):
        kind = getattr(kind, part, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = RuntimeError
    anything = (RuntimeError, RuntimeError(), None)
    wrapped = ExceptionWrapper(anything, str(told["where"]))  # type: ignore[no-untyped-call]
    wrapped.exc_type, wrapped.exc_msg = kind, str(told["text"])
    return wrapped, [str(note) for note in told["notes"]]


def raise_error(data: bytes, ask: Ask) -> None:
    """Raise a worker's packed exception (by torch's rules for types) or a failure the engine found."""
    trouble = unpacked(data)
    if trouble is not None:
        at = max(0, trouble.ordinal)
        key = repr(ask.keys[at]) if at < len(ask.keys) else "?"
        position = ask.position(at)
        raise worded(trouble, key=key, epoch=ask.epoch, position=position, batch=ask.batch)
    wrapped, notes = from_text(data[1:]) if data[:1] == TEXT else loads(data[1:])
    try:
        wrapped.reraise()
    except BaseException as exc:
        for note in notes:
            exc.add_note(note)
        raise
