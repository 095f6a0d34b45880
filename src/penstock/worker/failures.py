"""How a failure of the user's code travels: with a note that says where it was, and as text where it cannot be pickled."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from penstock.torch_private import wrap_exception
from penstock.wire.kinds import STAGES, Kind
from penstock.wire.pickles import dumps, unpack_keys
from penstock.worker.prepare import Where

MARK = "penstock: "
"""How notes of ours begin."""
OURS = f'  File "{Path(__file__).parents[1]}/'
"""How a frame of ours does, in the text of a traceback."""


def failure_note(kind: int, where: Where, keys: tuple[int, bytes], ordinal: int, worker: int) -> str:
    """Where a task failed, as a note for its exception; `keys` are the task's, packed."""
    if kind == Kind.STREAM or ordinal in STAGES:
        stage = "stream" if kind == Kind.STREAM else STAGES[ordinal]
        return f"penstock: batch {where.batch} of epoch {where.epoch} failed in '{stage}' on worker {worker}"
    key, ordinal = "?", max(0, ordinal)
    with contextlib.suppress(Exception):  # a key that cannot be unpickled or printed is the error itself
        key = repr(unpack_keys(*keys)[max(0, ordinal - where.start)])
    return (
        f"penstock: sample {key} (position {where.position(ordinal)} of epoch {where.epoch}, batch {where.batch}) failed in "
        f"'prepare' on worker {worker}"
    )


def dumps_failure(where: str, note: str) -> bytes:
    """The exception being handled, for its journey: as torch's loader would send it, without frames of ours above the user's, and with
    notes of ours beside it, as it has them where no process was crossed. One that cannot be pickled travels as its text."""
    exc = sys.exception()
    notes = [*take_notes(exc), note]
    wrapped = wrap_exception(where)
    wrapped.exc_msg = folded(wrapped.exc_msg)
    with contextlib.suppress(Exception):
        return dumps((wrapped, notes))
    wrapped.exc_type = RuntimeError
    return dumps((wrapped, notes))


def take_notes(exc: BaseException | None) -> list[str]:
    """Notes of ours, taken off an exception: its text would have them in the midst."""
    notes = getattr(exc, "__notes__", None)
    if not isinstance(notes, list):
        return []
    ours = [note for note in notes if isinstance(note, str) and note.startswith(MARK)]
    for note in ours:
        notes.remove(note)
    return ours


def folded(text: str) -> str:
    """The text of an exception; in each traceback the frames of ours that lead to other code are one line."""
    lines: list[str] = []
    ours: list[list[str]] = []
    leads = False
    for line in text.splitlines(keepends=True):
        frame = line.startswith('  File "')
        if leads and frame and line.startswith(OURS):
            ours.append([line])
        elif ours and not frame and line.startswith("    "):  # what belongs to the frame above
            ours[-1].append(line)
        else:
            if frame and ours:
                lines.append(f"  ({len(ours)} frame{'s' if len(ours) > 1 else ''} of penstock's own)\n")
            else:  # there is no other code: then these frames are what there is to say
                lines += [part for whole in ours for part in whole]
            ours, leads = [], line.rstrip().endswith("Traceback (most recent call last):")
            lines.append(line)
    return "".join([*lines, *(part for whole in ours for part in whole)])
