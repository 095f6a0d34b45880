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
from penstock.client.remote_side import RemoteSide
from penstock.node.link import NodeLink
from penstock.remote.gateway_config import GatewayConfig


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


def epoch(side: RemoteSide | None, *, tells: bool) -> tuple[str, set[str]]:
    loader: Any = penstock.DataLoader(Images(tells=tells), batch_size=16, shuffle=True, seed=2, num_workers=1)
    loader._remote = side
    digest, hosts = hashlib.sha256(), set[str]()
    for images, indices, where in loader:
        digest.update(images.numpy().tobytes() + indices.numpy().tobytes())
        hosts.update(where)
    return digest.hexdigest(), hosts


def main(within_s: float) -> None:
    logging.basicConfig(level=logging.WARNING)
    local, _ = epoch(None, tells=False)
    link = NodeLink.attach(within_s=60)
    side = RemoteSide(
        open_ferry=lambda facts, fds: link.open("ferry", facts, fds, within_s=60),
        gateway=GatewayConfig(connect_s=90),
        most=2,
    )
    deadline, hosts = time.monotonic() + within_s, set[str]()
    while time.monotonic() < deadline and len(hosts) < 3:
        hosts |= epoch(side, tells=True)[1]
    digests = {epoch(side, tells=False)[0] for _ in range(2)}
    link.close()
    print(json.dumps({"same": digests == {local}, "hosts": sorted(hosts)}))


if __name__ == "__main__":
    main(float(sys.argv[1]))
