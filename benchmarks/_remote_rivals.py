"""One measurement of `scripts/bench remote_rivals`, in the training host: batches by one subject for a while.

    python _remote_rivals.py '{"subject": …, "keywords": …, "workload": …, …}'

Prints JSON lines: {"at": "start"} when it has warmed up, then {"at": "end", "samples": …, "seconds": …}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from _prepare_subjects import Setting, Shuffled, our_dataset, torch_opencv

import penstock

DECIDE_S = 240.0
"""Time for our loader to hire workers, try plans and decide: the gateway starts on a core that the local worker keeps busy."""

REFINE_S = 45.0
"""Time for it to compare shares after that. It may go on with it while it is measured: so it does in a training."""


class Feed:
    """Batches without end. `settled` and `words` are for subjects that decide something while they run."""

    def __init__(
        self,
        batches: Iterator[Any],
        *,
        settled: Callable[[], bool] = lambda: True,
        words: Callable[[], str] = lambda: "",
    ) -> None:
        self.batches, self.settled, self.words = batches, settled, words


def loaded(loader_type: Any, setting: Setting, **more: Any) -> Any:
    """A loader over our dataset, pass after pass."""
    dataset = our_dataset(setting, fast=True)
    return loader_type(
        dataset,
        batch_size=setting.batch_size,
        sampler=Shuffled(len(dataset)),
        num_workers=setting.workers,
        drop_last=True,
        **more,
    )


def ours(setting: Setting, *, remote: dict[str, Any] | None = None) -> Feed:
    """Penstock, with workers of the cluster as `remote` says."""
    loader = loaded(
        penstock.DataLoader, setting, remote=None if remote is None else penstock.Remote(**remote)
    )

    def told(name: str) -> Any:
        return (loader.stats()["remote"] or {}).get(name, "")

    stage, since_s = "", 0.0

    def settled() -> bool:
        nonlocal stage, since_s
        if told("stage") != stage:
            stage, since_s = told("stage"), time.perf_counter()
        return remote is None or (stage == "refining" and time.perf_counter() > since_s + REFINE_S)

    return Feed(
        (images for images, _ in loader),
        settled=settled,
        words=lambda: f"{told('reason')}; now {told('plan')}, share {told('share')}" if remote else "",
    )


def torch_same(setting: Setting) -> Feed:
    """torch's loader over our dataset: the same code prepares a sample."""
    return Feed(images for images, _ in loaded(torch.utils.data.DataLoader, setting))


def torch_cv(setting: Setting) -> Feed:
    return Feed(torch_opencv(setting))


def ray_data(setting: Setting, **keywords: Any) -> Feed:
    import _remote_ray_data

    return Feed(_remote_ray_data.batches(setting, **keywords))


SUBJECTS = {"ours": ours, "ray_data": ray_data, "torch": torch_same, "torch_opencv": torch_cv}


def draw(batches: Iterator[Any], seconds: float) -> int:
    """Take batches for a while; return how many."""
    count, end_s = 0, time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        next(batches)
        count += 1
    return count


def main() -> None:
    asked = json.loads(sys.argv[1])
    subject, keywords = asked.pop("subject"), asked.pop("keywords")
    warmup_s, seconds = asked.pop("warmup_s"), asked.pop("seconds")
    torch.set_num_threads(1)
    setting = Setting(**asked)
    feed = SUBJECTS[subject](setting, **keywords)
    first = next(feed.batches)
    assert (*first.shape, first.dtype) == (setting.batch_size, 3, 224, 224, torch.float32)
    del first
    latest_s = time.perf_counter() + DECIDE_S
    while not feed.settled():
        draw(feed.batches, 1.0)
        if time.perf_counter() > latest_s:
            raise RuntimeError(f"nothing was decided after {DECIDE_S:g} s: {feed.words()}")
    draw(feed.batches, warmup_s)
    print(json.dumps({"at": "start"}), flush=True)
    started_s = time.perf_counter()
    samples = setting.batch_size * draw(feed.batches, seconds)
    found = {"samples": samples, "seconds": time.perf_counter() - started_s, "words": feed.words()}
    print(json.dumps({"at": "end", **found}), flush=True)
    sys.stdin.readline()  # its processes must be alive while their clocks are read


if __name__ == "__main__":
    main()
