"""How hard properties are tried: a full run tries much more."""

from __future__ import annotations

from hypothesis import settings

from tests.conftest import FULL

settings.register_profile("full", settings.get_profile("gate"), max_examples=5_000)
settings.load_profile("full" if FULL else "gate")
