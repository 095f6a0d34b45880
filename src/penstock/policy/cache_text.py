"""What `explain()` and `diagnose()` say about the cache of bytes, from `stats()["cache"]`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FROM = {"memory": "in memory", "disk": "on disk", "peers": "at other machines", "source": "at the source"}
NOTABLE = 0.05
"""Share of bytes from the source above which a larger cache is worth a word."""


def explained_cache(told: Mapping[str, Any]) -> str:
    """Return a paragraph: what is kept, and where bytes were found."""
    if not told:
        return "cache: its service does not answer; workers read by themselves"
    kept = f"{size(told['kept_bytes'])} of {size(told['data_bytes'])} are kept here"
    lines = [
        f"cache: {size(told['memory_max_bytes'])} of memory, {size(told['ring_bytes'])} for what is on its way; {kept}"
    ]
    if total := sum(told["bytes"].values()):
        found = ", ".join(
            f"{told['bytes'][where] / total:.0%} {words}"
            for where, words in FROM.items()
            if told["bytes"].get(where)
        )
        lines.append(f"  bytes so far were found {found}")
    lines.append(
        f"  {machines(told['nodes'])} can keep {min(1.0, kept_share(told)):.0%} of the data: later epochs read at least "
        f"{least_share(told):.0%} from the source"
    )
    if unread := told["samples"].get("unread"):
        lines.append(f"  {unread:,} samples had no room or could not be read: workers read them")
    return "\n".join(lines)


def cache_remark(told: Mapping[str, Any] | None, *, waits: bool) -> str:
    """Return a sentence for a run whose workers wait for bytes, or ""."""
    if not told or not waits:
        return ""
    if least_share(told) <= NOTABLE:
        return " Workers wait for bytes; after its first epoch the cache has them all."
    needed = told["data_bytes"] / told["nodes"] + told["ring_bytes"]
    return (
        f" Workers wait for bytes: the source serves at least {least_share(told):.0%} of each epoch. "
        f'cache=Cache(memory="{size(needed).replace(" ", "")}") on {machines(told["nodes"])} would keep all of it.'
    )


def kept_share(told: Mapping[str, Any]) -> float:
    """Return the share of the data for which all machines together have room."""
    return float(told["nodes"] * told["room_bytes"] / max(1, told["data_bytes"]))


def least_share(told: Mapping[str, Any]) -> float:
    """Return the share of an epoch that the source serves at least, after the first."""
    return max(0.0, 1.0 - kept_share(told))


def machines(count: int) -> str:
    return "this machine" if count == 1 else f"{count} machines"


def size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.3g} TiB"
