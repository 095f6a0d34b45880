"""One rank of a benchmark of the byte cache: `python _cache_rank.py '{…}'` in the environment of torchrun (see `_group.py`).

It trains for some epochs, a step being a sleep, and checks that each sample came whole and, over all ranks, once. Rank 0 prints a JSON line for each
epoch, with what the store served meanwhile; each rank prints a last one, {"at": "end", …}.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from _cache_samples import BUCKET, FOLDER, Samples, numbers_of
from _store_control import asked

import penstock

MEET_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    control: str
    samples: int
    mean: int
    batch: int
    epochs: int
    workers: int = 1
    cache: dict[str, Any] | None = None
    """Keywords of `penstock.Cache`."""
    prefetch: int | None = None
    kind: str = "s3"
    """Or "http": how the store is asked."""
    step_ms: float = 0.0
    """Of training; then ranks meet after each step."""
    seed: int = 1
    stream_s: float = 0.0
    """Only read one object over plain TCP for so long, and say at which rate."""
    idle: bool = False
    """Load nothing: what the barrier costs by itself."""


class Trainer:
    def __init__(self, spec: Spec) -> None:
        self.spec, self.world, self.rank = spec, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        if self.world > 1:
            dist.init_process_group("gloo", timeout=dt.timedelta(seconds=MEET_S))
        self.url = f"s3://{BUCKET}/{FOLDER}"
        if spec.kind == "http":
            self.url = f"{os.environ['AWS_ENDPOINT_URL']}/{BUCKET}/{FOLDER}"
        self.served = self.store()["bytes"] if self.rank == 0 else 0
        self.waits_ms: list[float] = []
        """At the barrier, of the epoch that runs."""

    def store(self) -> dict[str, Any]:
        return asked(self.spec.control, "count")

    def meet(self) -> None:
        if self.world > 1:
            dist.barrier()

    def loader(self) -> Any:
        spec = self.spec
        return penstock.DataLoader(
            Samples(self.url, spec.samples, spec.mean),
            batch_size=spec.batch,
            shuffle=True,
            seed=spec.seed,
            num_workers=spec.workers,
            shard=(self.rank, self.world),
            prefetch_batches=spec.prefetch,
            cache=None if spec.cache is None else penstock.Cache(**spec.cache),
        )

    def step(self) -> None:
        if not self.spec.step_ms:
            return
        time.sleep(self.spec.step_ms / 1000)
        began_s = time.perf_counter()
        self.meet()
        self.waits_ms.append(1000 * (time.perf_counter() - began_s))

    def train(self) -> None:
        loader = None if self.spec.idle else self.loader()
        for epoch in range(self.spec.epochs):
            self.waits_ms.clear()
            self.meet()
            began_s, first_s, seen = time.perf_counter(), 0.0, Counter[int]()
            if loader is None:
                for _ in range(self.spec.samples // (self.spec.batch * self.world)):
                    self.step()
            else:
                loader.set_epoch(epoch)
                for images, targets in loader:
                    first_s = first_s or time.perf_counter() - began_s
                    found = numbers_of(images)
                    if found != targets.tolist():
                        raise RuntimeError("samples and targets do not belong together")
                    seen.update(found)
                    self.step()
            self.meet()
            took_s = time.perf_counter() - began_s
            if loader is not None:
                self.check(seen)
            self.tell(epoch, took_s, first_s, loader)
        end = {"at": "end", "rank": self.rank}
        print(json.dumps(end), flush=True)
        if loader is not None:
            del loader
        self.meet()

    def tell(self, epoch: int, took_s: float, first_s: float, loader: Any) -> None:
        """Print what the epoch was like, rank 0 for all."""
        mine = torch.tensor([sum(self.waits_ms), len(self.waits_ms)], dtype=torch.float64)
        if self.world > 1:
            dist.all_reduce(mine)
        if self.rank == 0:
            served = self.store()["bytes"]
            row = {
                "at": "epoch",
                "epoch": epoch,
                "seconds": took_s,
                "first_batch_s": first_s,
                "served": served - self.served,
                "wait_ms": float(mine[0] / mine[1]) if mine[1] else 0.0,
                "wait_ms_p95": _p95(self.waits_ms),
                "cache": None if loader is None else loader.stats().get("cache"),
            }
            self.served = served
            print(json.dumps(row), flush=True)
        self.meet()

    def check(self, seen: Counter[int]) -> None:
        """Every sample came once, over all ranks."""
        counts = torch.zeros(self.spec.samples, dtype=torch.int32)
        for sample, times in seen.items():
            counts[sample] = times
        if self.world > 1:
            dist.all_reduce(counts)
        if not torch.equal(counts, torch.ones_like(counts)):
            raise RuntimeError(
                f"{int((counts == 0).sum())} samples did not come, {int((counts > 1).sum())} more than once"
            )


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1] if len(values) > 1 else 0.0


def stream(seconds: float) -> float:
    """Return the bytes per second of a plain TCP stream from the store: bodies of large answers, one behind the other."""
    url = urlsplit(os.environ["AWS_ENDPOINT_URL"])
    request = f"GET /{BUCKET}/large HTTP/1.1\r\nHost: store\r\n\r\n".encode()
    into = bytearray(1 << 20)
    with socket.create_connection((url.hostname or "", url.port or 80), timeout=MEET_S) as sock:
        began_s, got, left = 0.0, 0, 0
        while not began_s or time.perf_counter() < began_s + seconds:
            if left <= 0:
                sock.sendall(request)
                head = b""
                while b"\r\n\r\n" not in head:
                    head += sock.recv(1)
                left = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            count = sock.recv_into(into)
            left -= count
            if not began_s and left > 0:
                began_s = time.perf_counter()  # from here on the link is full
                continue
            got += count
        return got / (time.perf_counter() - began_s)


def main() -> None:
    spec = Spec(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    if spec.stream_s:
        print(json.dumps({"at": "end", "bytes_per_s": stream(spec.stream_s)}), flush=True)
        return
    Trainer(spec).train()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
