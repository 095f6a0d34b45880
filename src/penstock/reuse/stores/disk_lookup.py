"""Look up entries of the disk store: read their rows, follow them and check the records."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk_index import IndexRow
from penstock.reuse.stores.disk_records import decode
from penstock.reuse.stores.disk_segments import SegmentReader, StoreParts


def look_up(
    shelf: StoreParts,
    reader: SegmentReader,
    wanted: Sequence[Wanted],
    left: list[int],
    found: list[Entry | None],
) -> int:
    """Fill `found` for the positions in `left`; return how many records did not match their rows."""
    wrong: dict[int, IndexRow] = {}
    # guard: moved-record
    for _ in range(2):  # compaction may move a record meanwhile; its row then says where
        tried, wrong = wrong, {}
        for at, row in zip(left, shelf.index.rows([wanted[at].sample for at in left]), strict=True):
            if row.segment and row.renewed == wanted[at].renewed and row.length <= shelf.max_bytes:
                wrong[at] = row
        for at, data in reader.read({at: row for at, row in wrong.items() if tried.get(at) != row}):
            entry = found[at] = decode(data, shelf.digest, wanted[at])
            if entry is not None:
                del wrong[at]
        left = list(wrong)
        if not left:
            break
    return len(left)
