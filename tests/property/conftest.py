"""How hard properties are tried: a busy machine is no failure, and a full run tries much more."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("gate", deadline=None, print_blob=True, suppress_health_check=SLOW)
settings.register_profile("full", settings.get_profile("gate"), max_examples=5_000)
settings.load_profile("full" if os.environ.get("PENSTOCK_FULL") == "1" else "gate")
