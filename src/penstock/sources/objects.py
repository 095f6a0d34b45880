"""One try at reading an object with obstore, which hangs in a process that was forked after its use: only spawned processes import it.

Rule 1: what is returned are exactly the bytes asked for, of the object asked for, or it is an error. obstore itself returns fewer bytes past an
        object's end, and some stores ignore If-Match.
Rule 2: every wait has a deadline.
"""

from __future__ import annotations

import time
from typing import Any

from penstock.sources.fetch_frames import AskedBytes, FetchTrouble
from penstock.sources.stores import ObjectStores, Unreadable


class ObjectAnswer:
    """An object whose facts have arrived, and whose bytes have not."""

    def __init__(self, asked: AskedBytes, stores: ObjectStores) -> None:
        """Ask for it; raise Unreadable."""
        import obstore

        self._asked, self._stores = asked, stores
        options: dict[str, Any] = {"if_match": asked.etag} if asked.etag else {}
        if asked.end is not None:
            options["range"] = (asked.start, asked.end)
        elif asked.start:
            options["range"] = {"offset": asked.start}
        try:
            self._store, key = stores.of(asked.name, time_left_s(asked.deadline_s))
            self._got: Any = obstore.get(self._store, key, options=options or None)
            self._meta = meta = self._got.meta
        except Exception as exc:
            found = stores.trouble(exc, asked.name)
            raise (beyond(asked, stores) if found.status == 416 else found) from exc
        self.size: int = meta["size"]
        """Of the whole object."""
        self.etag: str = meta["e_tag"] or ""
        if asked.etag and meta["e_tag"] != asked.etag:  # guard: object-etag
            raise Unreadable(FetchTrouble.CHANGED, str(meta["e_tag"]))
        self.due = (self.size if asked.end is None else asked.end) - asked.start
        """Bytes to come."""

    @property
    def time(self) -> str:
        """Of its last change."""
        return str(self._meta["last_modified"])

    def bytes(self) -> Any:
        """Return the bytes: obstore's own, a buffer. Raise Unreadable."""
        try:
            data = self._got.bytes()
        except Exception as exc:
            raise self._stores.trouble(exc, self._asked.name) from exc
        self._check(len(data))
        return data

    def into(self, memory: memoryview, piece_bytes: int) -> None:
        """Write the bytes to memory of the same size, piece by piece; raise Unreadable."""
        at = 0
        try:
            for piece in self._got.stream(min_chunk_size=piece_bytes):
                time_left_s(self._asked.deadline_s)
                start, at = at, at + len(piece)
                if at > len(memory):
                    break
                memory[start:at] = piece
        except Exception as exc:
            raise self._stores.trouble(exc, self._asked.name) from exc
        self._check(at)

    def _check(self, came: int) -> None:
        self._stores.worked(self._store)
        if came != self.due:  # guard: object-length
            raise too_short(self._asked, self.size)


def range_bytes(asked: AskedBytes, stores: ObjectStores) -> Any:
    """Return bytes of an object with a known end, whatever its etag: obstore's own, a buffer. It takes less CPU than `ObjectAnswer`. Raise Unreadable."""
    import obstore

    name, start, end, deadline_s, _ = asked
    try:
        store, key = stores.of(name, time_left_s(deadline_s))
        data = obstore.get_range(store, key, start=start, end=end)
    except Exception as exc:
        found = stores.trouble(exc, name)
        raise (beyond(asked, stores) if found.status == 416 else found) from exc
    stores.worked(store)
    if end is None or len(data) != end - start:  # guard: range-length
        raise beyond(asked, stores)
    return data


def head(name: str, deadline_s: float, stores: ObjectStores) -> tuple[int, str, str]:
    """Return an object's size, etag ("" if it has none) and time of change; raise Unreadable."""
    import obstore

    try:
        store, key = stores.of(name, time_left_s(deadline_s))
        meta = obstore.head(store, key)
    except Exception as exc:
        raise stores.trouble(exc, name) from exc
    stores.worked(store)
    return meta["size"], meta["e_tag"] or "", str(meta["last_modified"])


def time_left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise Unreadable(FetchTrouble.FLEETING, "its time was over before it could be read")
    return left_s


def beyond(asked: AskedBytes, stores: ObjectStores) -> Unreadable:
    """Say how large an object is that ends before the range begins."""
    try:
        return too_short(asked, head(asked.name, asked.deadline_s, stores)[0])
    except Unreadable as exc:
        return exc


def too_short(asked: AskedBytes, size: int) -> Unreadable:
    end = size if asked.end is None else asked.end
    return Unreadable(
        FetchTrouble.REFUSED,
        f"it has {size:,} bytes, and bytes [{asked.start:,}, {end:,}) were asked for: is it cut off?",
    )
