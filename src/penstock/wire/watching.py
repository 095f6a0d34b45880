"""Watch channels in a selector."""

from __future__ import annotations

import selectors

from penstock.wire.frames import Channel


def watch(selector: selectors.BaseSelector, channel: Channel) -> None:
    """Have a registered channel's callback called, too, when it can send what it could not."""
    key = selector.get_key(channel)
    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.clogged else 0)
    if key.events != wanted:
        selector.modify(channel, wanted, key.data)
