"""Workers of a Ray cluster beside local ones: a cluster of two nodes on this machine, then the same epoch by local workers, by remote
ones, and by both.

pip install 'penstock[ray]'
python examples/remote.py

Here all "nodes" share this machine's cores, so a sample waits instead of computing: as if each node had cores of its own.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from penstock import DataLoader, Remote

SAMPLE_S = 0.01
"""What a sample costs whoever prepares it."""


class Slow(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 1_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(SAMPLE_S)
        return torch.randn(3, 64, 64) + index, index


@contextmanager
def two_nodes() -> Iterator[str]:
    """Start a head without CPUs to lend and a node with two; yield the cluster's address. Your clusters have `ray up` or KubeRay."""
    os.environ["RAY_AUTH_MODE"] = "token"  # penstock refuses a cluster that anyone may use
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2)
        yield cluster.address
    finally:
        cluster.shutdown()


def epoch(loader: DataLoader[tuple[torch.Tensor, int]]) -> tuple[float, str]:
    """Return the samples per second of an epoch, and a digest of all its batches."""
    digest, started_s = hashlib.sha256(), time.perf_counter()
    for images, _ in loader:
        digest.update(images.numpy().tobytes())
    return len(loader.dataset) / (time.perf_counter() - started_s), digest.hexdigest()[:12]  # type: ignore[arg-type]


def main() -> None:
    print("starting a Ray cluster of two nodes …", flush=True)
    with two_nodes() as address:
        ways = {
            "1 local worker": None,
            "2 remote workers": Remote(address=address, max_workers=2, share=1.0, plan="samples"),
            "1 local and 2 remote workers": Remote(
                address=address, max_workers=2, share=2 / 3, plan="samples"
            ),
        }
        for name, remote in ways.items():
            loader = DataLoader(Slow(), batch_size=50, shuffle=True, seed=1, num_workers=1, remote=remote)
            rates = []
            # The cluster takes some seconds to start workers: local ones go on meanwhile.
            for _ in range(4 if remote else 1):
                loader.set_epoch(0)
                rate, digest = epoch(loader)
                rates.append(rate)
            print(f"{name:<30} {max(rates):5.0f} samples/s   batches {digest}", flush=True)
            del loader


if __name__ == "__main__":
    main()
