"""The JPEG decoder under libFuzzer: scripts/bench jpeg_fuzz_campaign [--schedules 100] [--out FILE]

Each is a run of `tests/fuzz/jpeg_fuzz.py`: 100,000 files with changed Huffman tables, segments and scans, decoded under the address and
undefined-behaviour sanitizers, and compared with libjpeg where its headers are installed. Needs clang. What reaches new code is kept in
`out/fuzz/jpeg`, so a campaign that was stopped goes on with it.
"""

from __future__ import annotations

import sys

from _campaign import campaign

if __name__ == "__main__":
    sys.exit(campaign("tests.fuzz.jpeg_fuzz", chunk=1, schedules=100))
