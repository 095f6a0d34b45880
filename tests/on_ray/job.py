"""A training job for the campaign of faults: epochs with workers of the cluster until stdin closes. Prints what it saw of each, as JSON."""

from __future__ import annotations

import hashlib
import json
import logging
import select
import socket
import sys
import time
from typing import Any

import torch
from torch.utils.data import Dataset

import penstock

SAMPLES, BATCH, SEED = 256, 16, 5
HERE = socket.gethostname()


class Slow(Dataset[Any]):
    """Each sample takes a while, without a core, and knows the host that made it."""

    def __init__(self, sample_s: float) -> None:
        self.sample_s = sample_s

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.sample_s)
        return torch.randn(3, 64, 64) + index, index, socket.gethostname()


def main() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    remote = penstock.Remote(max_workers=3, share=0.75, plan="samples")
    loader = penstock.DataLoader(Slow(0.008), BATCH, shuffle=True, seed=SEED, num_workers=1, remote=remote)
    inline = penstock.DataLoader(Slow(0.0), BATCH, shuffle=True, seed=SEED)
    epoch = 0
    while not select.select([sys.stdin], [], [], 0.0)[0]:
        for one in (loader, inline):
            one.set_epoch(epoch)
        digests, indices, elsewhere, longest_s, last_s = (
            [hashlib.sha256(), hashlib.sha256()],
            [],
            0,
            0.0,
            time.monotonic(),
        )
        for images, which, hosts in loader:
            longest_s, last_s = max(longest_s, time.monotonic() - last_s), time.monotonic()
            digests[0].update(images.numpy().tobytes() + which.numpy().tobytes())
            indices += which.tolist()
            elsewhere += sum(host != HERE for host in hosts)
        for images, which, _ in inline:
            digests[1].update(images.numpy().tobytes() + which.numpy().tobytes())
        found = {
            "epoch": epoch,
            "once": sorted(indices) == list(range(SAMPLES)),
            "same": digests[0].digest() == digests[1].digest(),
            "elsewhere": elsewhere,
            "longest_s": round(longest_s, 2),
        }
        print(json.dumps(found), flush=True)
        epoch += 1


if __name__ == "__main__":
    main()
