"""The kinds of task, shared by the core that issues them and the workers that run them."""

from __future__ import annotations

from enum import IntEnum

COLLATING, FETCHING = -2, -3
"""In place of a sample's ordinal: code that sees a whole batch runs, a collate or `__getitems__`."""
STAGES = {COLLATING: "collate", FETCHING: "__getitems__"}


class Kind(IntEnum):
    """How a task's samples become (part of) a batch."""

    SLOTS = 0
    """Written straight into slots of the batch's slab, which the training process views."""
    PARTS = 1
    """Written as an extent of their own; a worker collates the batch once all parts are there."""
    COLLATE = 2
    """The user's collate function over the parts of one batch."""
    WHOLE = 3
    """Prepared and collated by one worker, as torch does; for samples that cannot travel between workers."""
    STREAM = 4
    """The next batch of one worker's own iterator (iterable datasets)."""
