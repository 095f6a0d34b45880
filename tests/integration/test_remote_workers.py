"""Workers on other machines, here as processes behind real TCP connections: the same batches, whoever prepares what."""

from __future__ import annotations

import collections
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

import penstock
from penstock.client.remote_side import RemoteSide
from remote_here import FerryHere, Server, remote_workers

pytest.importorskip("cloudpickle")

Pair = collections.namedtuple("Pair", "image label")  # noqa: PYI024 - as users write it
Remote = tuple[RemoteSide, FerryHere, list[Server]]


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    with remote_workers(2) as found:
        yield found


class Busy(Dataset[Any]):
    """Samples of many shapes of result, which take a while: so every worker gets some."""

    def __init__(self, form: str, count: int = 240, *, busy_s: float = 0.004) -> None:
        self.form, self.count, self.busy_s = form, count, busy_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        until = time.perf_counter() + self.busy_s
        image = torch.randn(3, 8, 8) + index
        while time.perf_counter() < until:
            pass
        forms = {
            "pair": lambda: (image, index),
            "dict": lambda: {"image": image, "name": f"sample {index}", "at": (index, np.float32(index))},
            "array": lambda: np.arange(6, dtype=np.int16).reshape(2, 3) + index,
            "named": lambda: Pair(image, index),
            "ragged": lambda: torch.arange(index % 7 + 1),
            "growing text": lambda: (image, "x" * (index * 40)),
            "process": lambda: (image, get_worker_info().id),
        }
        return forms[self.form]()


def listed(batch: list[Any]) -> list[Any]:
    return batch


def batches(dataset: Dataset[Any], remote: Remote | None = None, **options: Any) -> list[Any]:
    loader: Any = penstock.DataLoader(dataset, batch_size=16, shuffle=True, seed=7, num_workers=1, **options)
    if remote is not None:
        loader._remote = remote[0]
    return list(loader)


def local(form: str, **options: Any) -> list[Any]:
    """What a local worker makes, without the wait."""
    return flat(batches(Busy(form, busy_s=0.0), **options))


def flat(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value.dtype, tuple(value.shape), value.numpy().tobytes()]
    if isinstance(value, dict):
        return [item for key, inner in value.items() for item in (key, *flat(inner))]
    if isinstance(value, list | tuple):
        return [type(value), *(item for inner in value for item in flat(inner))]
    return [type(value), value]


@pytest.mark.parametrize("form", ["pair", "dict", "array", "named", "growing text"])
def test_batches_are_those_of_local_workers(remote: Remote, form: str) -> None:
    assert flat(batches(Busy(form), remote)) == local(form)


def test_ragged_samples_are_collated_here(remote: Remote) -> None:
    found = batches(Busy("ragged"), remote, collate_fn=listed)
    assert flat(found) == local("ragged", collate_fn=listed)


def test_remote_workers_do_work(remote: Remote) -> None:
    """They are numbered behind the local ones."""
    batches(Busy("process"), remote)  # they may still be starting
    who = {int(worker) for _, workers in batches(Busy("process"), remote) for worker in workers}
    assert who == {0, 1, 2}


def test_each_has_batches_to_work_on(remote: Remote) -> None:
    """Two for every worker, wherever it is, once they are there."""
    loader: Any = penstock.DataLoader(Busy("pair", 6000), batch_size=4, num_workers=1)
    loader._remote = remote[0]
    for _ in (found := iter(loader)):
        if loader.stats()["remote"].get("workers_had") == 2:
            next(found)
            break
    assert found.ahead == 6


def test_they_stay_for_the_next_epoch_and_the_next_loader(remote: Remote) -> None:
    batches(Busy("pair"), remote)
    pids = [server.process.poll() for server in remote[2]]
    assert pids == [None, None]
    assert flat(batches(Busy("array"), remote)) == local("array")


def test_persistent_workers_and_several_epochs(remote: Remote) -> None:
    def epochs(used: Remote | None) -> list[Any]:
        dataset = Busy("pair", busy_s=0.004 if used else 0.0)
        loader: Any = penstock.DataLoader(
            dataset, batch_size=16, shuffle=True, seed=3, num_workers=1, persistent_workers=True
        )
        loader._remote = used[0] if used else None
        return [flat(list(loader)) for _ in range(3)]

    assert epochs(remote) == epochs(None)


def test_spawned_loaders_use_them_too(remote: Remote) -> None:
    assert flat(batches(Busy("pair"), remote, multiprocessing_context="spawn")) == local("pair")


class Wrong(Busy):
    def __getitem__(self, index: int) -> Any:
        if index == 77 and get_worker_info().id:
            raise LookupError("no such thing")
        return super().__getitem__(index)


def test_an_error_there_is_the_users_error_with_host_and_sample(remote: Remote) -> None:
    batches(Busy("pair"), remote)

    def until_a_remote_worker_gets_it() -> None:
        for _ in range(20):
            batches(Wrong("pair"), remote)

    with pytest.raises(LookupError) as caught:
        until_a_remote_worker_gets_it()
    text = str(caught.value) + "".join(caught.value.__notes__)
    assert "no such thing" in text
    assert "Original Traceback" in text
    assert "sample 77" in text


class Local(Busy):
    """Only this process's module has it, and it refuses to be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("not for others")


def test_a_dataset_that_cannot_be_pickled_is_prepared_here(
    remote: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(batches(Local("pair"), remote)) == 15
    assert "cannot be pickled (TypeError: not for others)" in caplog.text
