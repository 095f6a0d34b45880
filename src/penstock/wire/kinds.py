"""The kinds of task, shared by the core that issues them and the workers that run them."""

from __future__ import annotations

from enum import IntEnum

COLLATING, FETCHING = -2, -3
"""Said in the place of a sample's number: what runs is code that sees a whole batch, a collate or `__getitems__`."""
STAGES = {COLLATING: "collate", FETCHING: "__getitems__"}


class Kind(IntEnum):
    """How the samples of a task become (a part of) a batch."""

    SLOTS = 0
    """Written straight into their slots of the batch's slab; the training process views the slab."""
    PARTS = 1
    """Written as an extent of their own, to be collated by a worker when the batch's samples are all there."""
    COLLATE = 2
    """The user's collate function over the parts of one batch."""
    WHOLE = 3
    """Prepared and collated by one worker, as torch does; for what cannot travel between workers."""
    STREAM = 4
    """The next batch of one worker's own iterator (iterable datasets)."""
