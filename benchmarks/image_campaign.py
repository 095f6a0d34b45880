"""Damaged images by the hundred thousand: scripts/bench image_campaign [--schedules 100000] [--out FILE]

Each is a run of `tests/fault/mutated_images.py`: a small JPEG, PNG or WebP file is damaged and decoded. What comes of it must be
an image of its header's size or BadImage, within two seconds; a process that ends fails the seeds it did not come to.
"""

from __future__ import annotations

import sys

from _campaign import campaign

if __name__ == "__main__":
    sys.exit(campaign("tests.fault.mutated_images", chunk=1000, schedules=100_000))
