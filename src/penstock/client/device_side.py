"""Device state that a loader keeps between epochs, though its workers may be new each epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.places import Places

if TYPE_CHECKING:
    from penstock.gpu.prep import Prep  # it imports much


class DeviceSide:
    """Device state of one loader. A copy of the loader, in this process or another, starts without it."""

    def __init__(self) -> None:
        self.prep: Prep | None = None
        """The last iterator's GPU lane and the dataset made for its workers."""
        self.places: Places | None = None
        """Batch buffers on the device."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()

    def stats(self) -> dict[str, Any] | None:
        """Return the numbers of the current or last GPU lane."""
        return None if self.prep is None else self.prep.lane.stats()
