"""Simulated schedules with a late, partitioned and lost remote pool: scripts/bench sim_remote_campaign [--schedules 100000]

Each is a run of `penstock.sim` under a virtual clock (see `tests/sim/test_remote_schedules.py`), every tenth with the core's
books checked after every event.
"""

from __future__ import annotations

import sys

from _campaign import campaign

if __name__ == "__main__":
    sys.exit(campaign("tests.sim.remote_schedules", chunk=250, schedules=100_000))
