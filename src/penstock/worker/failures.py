"""Send failures of user code to the training process: with a note of the place, and as text if they cannot be pickled."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from penstock.torch_private import wrap_exception
from penstock.wire.kinds import STAGES, Kind
from penstock.wire.pickles import dumps, unpack_keys
from penstock.worker.prepare import Where

MARK = "penstock: "
"""Start of our notes."""
OURS = f'  File "{Path(__file__).parents[1]}/'
"""Start of our frames in a traceback's text."""


def failure_note(kind: int, where: Where, keys: tuple[int, bytes], ordinal: int, worker: int) -> str:
    """Say where a task failed, as a note for its exception; `keys` are the task's, packed."""
    if kind == Kind.STREAM or ordinal in STAGES:
        stage = "stream" if kind == Kind.STREAM else STAGES[ordinal]
        return f"penstock: batch {where.batch} of epoch {where.epoch} failed in '{stage}' on worker {worker}"
    key, ordinal = "?", max(0, ordinal)
    with contextlib.suppress(Exception):  # a key that fails to unpickle or print is the error itself
        key = repr(unpack_keys(*keys)[max(0, ordinal - where.start)])
    return (
        f"penstock: sample {key} (position {where.position(ordinal)} of epoch {where.epoch}, batch {where.batch}) failed in "
        f"'prepare' on worker {worker}"
    )


def dumps_failure(where: str, note: str) -> bytes:
    """Pickle the exception being handled as torch's loader would, without our frames above the user's and with our notes kept separate, as
    they are without a process boundary. An exception that cannot be pickled travels as text."""
    exc = sys.exception()
    notes = [*take_notes(exc), note]
    wrapped = wrap_exception(where)
    wrapped.exc_msg = folded(wrapped.exc_msg)
    with contextlib.suppress(Exception):
        return dumps((wrapped, notes))
    wrapped.exc_type = RuntimeError
    return dumps((wrapped, notes))


def take_notes(exc: BaseException | None) -> list[str]:
    """Remove our notes from an exception and return them; they would end up inside its text."""
    notes = getattr(exc, "__notes__", None)
    if not isinstance(notes, list):
        return []
    ours = [note for note in notes if isinstance(note, str) and note.startswith(MARK)]
    for note in ours:
        notes.remove(note)
    return ours


def folded(text: str) -> str:
    """Fold our frames that lead to other code into one line, in each traceback of the text."""
    lines: list[str] = []
    ours: list[list[str]] = []
    leads = False
    for line in text.splitlines(keepends=True):
        frame = line.startswith('  File "')
        if leads and frame and line.startswith(OURS):
            ours.append([line])
        elif ours and not frame and line.startswith("    "):  # part of the frame above
            ours[-1].append(line)
        else:
            if frame and ours:
                lines.append(f"  ({len(ours)} frame{'s' if len(ours) > 1 else ''} of penstock's own)\n")
            else:  # no other code follows: show our frames
                lines += [part for whole in ours for part in whole]
            ours, leads = [], line.rstrip().endswith("Traceback (most recent call last):")
            lines.append(line)
    return "".join([*lines, *(part for whole in ours for part in whole)])
