"""A layout between processes of one loader: its text, or where it has none (keys and classes of any kind) a pickle.

What comes from another machine is a text: read that with `layout_text.unpack`, never here.
"""

from __future__ import annotations

from penstock.wire import layout_text
from penstock.wire.layout import Layout
from penstock.wire.pickles import dumps, loads

TEXT, PICKLE = b"J", b"P"


def to_blob(layout: Layout) -> bytes:
    text = layout_text.pack(layout)
    return PICKLE + dumps(layout) if text is None else TEXT + text


def from_blob(blob: bytes) -> Layout:
    if blob[:1] == TEXT:
        # A worker may have imported the class's module for its first sample, when the training process had not.
        return layout_text.unpack(blob[1:], importing=True)
    layout: Layout = loads(blob[1:])
    return layout
