"""Simulated schedules of faults by the hundred thousand: scripts/bench sim_campaign [--schedules 100000] [--out FILE]

Each is a run of `penstock.sim` under a virtual clock (see `tests/sim`), every tenth with the core's books checked after
every event.
"""

from __future__ import annotations

import sys

from _campaign import campaign

if __name__ == "__main__":
    sys.exit(campaign("tests.sim.schedules", chunk=250, schedules=100_000))
