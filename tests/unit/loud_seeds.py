"""Seeds for a campaign whose processes say more than a pipe holds."""

from __future__ import annotations

from typing import Any


def run(seed: int) -> dict[str, Any]:
    return {"seed": seed, "ok": True, "said": 1, "why": "x" * 1000}
