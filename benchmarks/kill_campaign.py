"""Schedules of real kills and restores by the thousand: scripts/bench kill_campaign [--schedules 10000] [--out FILE]

Each is a run of `tests/fault/kill_schedules.py`: workers and agents are killed, the loader is saved and resumed with other
workers, and what it delivers is compared, bit for bit, with what one process alone delivers.
"""

from __future__ import annotations

import sys

from _campaign import campaign

if __name__ == "__main__":
    sys.exit(campaign("tests.fault.kill_schedules", chunk=20))
