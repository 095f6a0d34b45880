"""A training program for the cluster's tests: photos by local workers, then by workers of the cluster, by every plan. Prints what it saw, as JSON."""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import penstock
from penstock import transforms as T

COUNT = 96
PLANS = ("samples", "bytes", "batches", "cut")
CHAIN = [
    T.RandomResizedCrop(64),
    T.RandomHorizontalFlip(),
    T.ToDtype(torch.float32, scale=True),
    T.Normalize([0.5, 0.4, 0.3], [0.2, 0.25, 0.3]),
]


def slowly_with_host(target: int) -> tuple[int, str]:
    """Each sample takes a few milliseconds and knows the host that made it."""
    time.sleep(0.005)
    return target, socket.gethostname()


def make_photos(root: Path) -> Path:
    for number in range(COUNT):
        pixels = np.random.default_rng(number).integers(0, 256, (12, 16, 3), np.uint8)
        path = root / "ab"[number % 2] / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((320, 240)).save(path)
    return root


def loader_of(root: Path, remote: penstock.Remote | None) -> Any:
    dataset = penstock.ImageFolder(root, CHAIN, slowly_with_host)
    return penstock.DataLoader(dataset, batch_size=16, shuffle=True, seed=7, num_workers=1, remote=remote)


def digest_of(loader: Any) -> tuple[str, set[str]]:
    """Return a digest of the first epoch's batches, and the hosts that made them."""
    digest, hosts = hashlib.sha256(), set[str]()
    loader.set_epoch(0)
    for images, (targets, where) in loader:
        digest.update(images.numpy().tobytes() + targets.numpy().tobytes())
        hosts.update(where)
    return digest.hexdigest(), hosts


def main(shared: Path, within_s: float) -> None:
    logging.basicConfig(level=logging.WARNING)
    everywhere = make_photos(shared)
    only_here = make_photos(Path("/dev/shm/photos"))
    local, _ = digest_of(loader_of(everywhere, None))
    seen = {}
    for plan in PLANS:
        root = only_here if plan == "bytes" else everywhere
        loader = loader_of(root, penstock.Remote(max_workers=2, share=0.75, plan=plan))
        deadline, digests, hosts = time.monotonic() + within_s, set[str](), set[str]()
        while time.monotonic() < deadline and not {"h1", "h2"} <= hosts:
            digest, some = digest_of(loader)
            digests.add(digest)
            hosts |= some
        seen[plan] = {"same": digests == {local}, "elsewhere": sorted(hosts - {"h0"})}
        del loader
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
