"""What a loader keeps for its device between epochs: workers come anew with every epoch, this need not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.places import Places

if TYPE_CHECKING:
    from penstock.gpu.prep import Prep  # it imports much


class DeviceSide:
    """Of one loader. A copy of the loader, in this process or another, starts without."""

    def __init__(self) -> None:
        self.prep: Prep | None = None
        """The GPU lane of the last iterator, and the dataset that workers had for it."""
        self.places: Places | None = None
        """Where batches come to on the device."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()

    def stats(self) -> dict[str, Any] | None:
        """Numbers of the GPU lane that there is, or was last."""
        return None if self.prep is None else self.prep.lane.stats()
