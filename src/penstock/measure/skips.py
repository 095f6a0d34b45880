"""Samples that `on_error` dropped or replaced, each listed once however often it was tried."""

from __future__ import annotations

from typing import Any

from penstock.errors import TooManySkipped


class Skips:
    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[tuple[int, int], dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, skip: dict[str, Any]) -> None:
        self._found[skip["epoch"], skip["position"]] = skip
        if len(self._found) > self._most:
            file = f" ({skip['path']})" if skip.get("path") else ""
            raise TooManySkipped(
                f"{len(self._found)} samples failed, more than max_skipped={self._most}; the last: sample "
                f"{skip['key']}{file}: {skip['error']}. loader.skipped() lists them; raise max_skipped to go on."
            )

    def report(self) -> list[dict[str, Any]]:
        """Return the skips in order of epoch and position."""
        return [self._found[key] for key in sorted(self._found)]
