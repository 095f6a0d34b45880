"""The CUDA driver's queues for the streams of this process.

Streams that share a queue wait for one another. A decoder has a stream per JPEG engine; with the driver's default of 8 queues some share
training's, and a file waits for all steps training has queued: beside a ResNet-18 on an H200, two decoders made 3,050 images/s of 18,000, and
11,600 with 32 queues.

Nothing here imports torch: the package asks for queues when it is imported, before most programs start CUDA.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
"""The driver reads it when CUDA starts in a process."""
DRIVERS, ENOUGH = 8, 32
"""The default, and the maximum."""


def asked_for() -> bool:
    """Ask for queues, unless somebody has; False if that is too late."""
    if VARIABLE in os.environ:
        return True
    os.environ[VARIABLE] = str(ENOUGH)
    torch = sys.modules.get("torch")
    return not (torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized())


IN_TIME = asked_for()


def too_few() -> str:
    """Return why decoding will wait behind training, and the fix; "" if there are enough queues."""
    if not IN_TIME:
        return f"CUDA was started before penstock was imported, with {DRIVERS} queues: files wait behind training. Import penstock first, or start the program with {VARIABLE}={ENOUGH}"
    said = os.environ.get(VARIABLE, "")
    count = int(said) if said.isdecimal() else DRIVERS
    return (
        f"{VARIABLE}={said}: files wait behind training. {ENOUGH} would let them pass"
        if count < ENOUGH
        else ""
    )
