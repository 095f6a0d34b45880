"""How a failure of the user's code travels: with a note that says where it was, and as text where it cannot be pickled."""

from __future__ import annotations

import contextlib
from typing import Any

from penstock.lanes.kinds import STAGES, Kind
from penstock.lanes.pickles import dumps, unpack_keys
from penstock.lanes.prepare import Where


def failure_note(kind: int, where: Where, keys: tuple[int, bytes], ordinal: int, worker: int) -> str:
    """Where a task failed, as a note for its exception; `keys` are the task's, packed."""
    if kind == Kind.STREAM or ordinal in STAGES:
        stage = "stream" if kind == Kind.STREAM else STAGES[ordinal]
        return f"penstock: batch {where.batch} of epoch {where.epoch} failed in '{stage}' on worker {worker}"
    key, ordinal = "?", max(0, ordinal)
    with contextlib.suppress(
        Exception
    ):  # a key that cannot be unpickled, or not printed, is the error itself
        key = repr(unpack_keys(*keys)[max(0, ordinal - where.start)])
    return (
        f"penstock: sample {key} (position {where.position(ordinal)} of epoch {where.epoch}, batch {where.batch}) failed in "
        f"'prepare' on worker {worker}"
    )


def dumps_error(wrapped: Any, note: str) -> bytes:
    """The exception for its journey; one that cannot be pickled travels as its traceback text."""
    with contextlib.suppress(Exception):
        return dumps((wrapped, note))
    wrapped.exc_type = RuntimeError
    return dumps((wrapped, note))
