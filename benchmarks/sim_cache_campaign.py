"""Simulated schedules of faults for the caches of a group: scripts/bench sim_cache_campaign [--schedules 10000] [--out FILE]

Each is a run of `penstock.sim.cache_faults` (see `tests/property/test_keeper_properties.py`), every seventh with the keepers' books
checked after every event.
"""

from __future__ import annotations

import sys

from _campaign import campaign

if __name__ == "__main__":
    sys.exit(campaign("tests.sim.cache_schedules", chunk=100, schedules=10_000))
