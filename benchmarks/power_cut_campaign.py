"""Power cuts by the million: scripts/bench power_cut_campaign [--schedules 10000] [--out FILE]

Each schedule is 100 states that a disk may be in after a power cut while the store on disk was written, of `tests/fault/power_cuts.py`. In each
of them the store must open, give the right bytes or none, have what was synced, and take new entries.
"""

from __future__ import annotations

import sys

from _campaign import campaign

if __name__ == "__main__":
    sys.exit(campaign("tests.fault.power_cuts", chunk=20, schedules=10_000))
