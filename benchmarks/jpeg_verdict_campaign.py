"""JPEG files with changed segments by the hundred thousand: scripts/bench jpeg_verdict_campaign [--schedules 200000] [--out FILE]

Each is a run of `tests/fault/jpeg_verdicts.py`: Huffman tables, quantisation tables, frames, restarts and colour profiles are changed, moved and left
out. With the compiled loops and without them the file must be accepted or refused alike, with the same pixels, and Pillow must agree.
"""

from __future__ import annotations

import sys

from _campaign import campaign

if __name__ == "__main__":
    sys.exit(campaign("tests.fault.jpeg_verdicts", chunk=2000, schedules=200_000))
