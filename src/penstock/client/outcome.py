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


def given_up_text(worker: int, data: bytes) -> str:
    """Say why a worker for a borrowed core is done without, and what to do: it had a packed error, or the engine found one."""
    head = f"worker {worker}, for a core that is borrowed, "
    tail = "training goes on without it, and no more such workers are started here"
    trouble = unpacked(data)
    if trouble is None:
        text = exception_text(data)
        return (
            f"{head}failed in worker_init_fn ({text.splitlines()[-1].strip()}): {tail}. Their ids are num_workers and above: let "
            f"worker_init_fn take them, or set PENSTOCK_LENDING=0 to borrow no cores. Its traceback:\n{text}"
        )
    what, newline, stack = trouble.cause.partition("\n")
    how = (
        f"was lost {trouble.tries} times in a row, with nothing done; the last, {what}"
        if trouble.tries
        else f"could not be started ({what})"
    )
    return (
        f"{head}{how}: {tail}. Look whether it met a limit (memory, processes, open files) or the dataset can no longer be pickled, or set "
        f"PENSTOCK_LENDING=0 to borrow no cores.{newline}{stack}"
    )


def exception_text(data: bytes) -> str:
    """Return the traceback of a packed exception, whose class need not exist here."""
    try:
        wrapped, _ = loads(data[1:])
    except Exception as exc:  # noqa: BLE001 - unpickling may raise anything
        return f"an exception that cannot be unpickled here: {exc!r}"
    return str(wrapped.exc_msg).strip() or "an exception without a text"


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
