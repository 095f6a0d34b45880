"""A training program for the cluster's tests: batches by local workers, then with workers of the cluster. Prints what it saw, as JSON."""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import sys
import time
from typing import Any

import torch
from torch.utils.data import Dataset

import penstock


class Images(Dataset[Any]):
    """Each sample takes a few milliseconds and knows the host that made it."""

    def __init__(self, *, tells: bool) -> None:
        self.tells = tells

    def __len__(self) -> int:
        return 320

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.005)
        host = socket.gethostname() if self.tells else "?"
        return torch.randn(3, 32, 32) + index, index, host


def epoch(loader: Any) -> tuple[str, set[str]]:
    digest, hosts = hashlib.sha256(), set[str]()
    for images, indices, where in loader:
        digest.update(images.numpy().tobytes() + indices.numpy().tobytes())
        hosts.update(where)
    return digest.hexdigest(), hosts


def loader_of(remote: penstock.Remote | None, *, tells: bool) -> Any:
    return penstock.DataLoader(
        Images(tells=tells), batch_size=16, shuffle=True, seed=2, num_workers=1, remote=remote
    )


def main(within_s: float, *, tls: bool) -> None:
    logging.basicConfig(level=logging.WARNING)
    remote = penstock.Remote(max_workers=2, share=0.75, tls=tls)
    local = [digest for digest, _ in map(epoch, [loader_of(None, tells=False)] * 3)]
    told, silent = loader_of(remote, tells=True), loader_of(remote, tells=False)
    deadline, hosts = time.monotonic() + within_s, set[str]()
    while time.monotonic() < deadline and len(hosts) < 3:
        hosts |= epoch(told)[1]
    del told
    same = [epoch(silent)[0] for _ in range(3)] == local
    print(json.dumps({"same": same, "hosts": sorted(hosts)}))


if __name__ == "__main__":
    main(float(sys.argv[1]), tls="tls" in sys.argv[2:])
