"""An agent's sockets to what the ranks of a machine share: remote workers, and the cache of bytes."""

from __future__ import annotations

import socket
from typing import Final, NamedTuple

from penstock.agent.fetching import Fetching
from penstock.remote.handles import FerryLink
from penstock.wire.frames import Channel


class Ways(NamedTuple):
    ferry: socket.socket | None = None
    """To remote workers."""
    supply: socket.socket | None = None
    """Where streams to the cache come from."""

    def ferry_link(self) -> FerryLink | None:
        return None if self.ferry is None else FerryLink(Channel(self.ferry))

    def fetching(self) -> Fetching | None:
        return None if self.supply is None else Fetching(self.supply)


NO_WAYS: Final = Ways()
