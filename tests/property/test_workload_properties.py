"""The identity of a workload changes with each of its ingredients, and with nothing else."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, Subset

import penstock
from penstock.client.arguments import TorchArguments
from penstock.client.remote_side import RemoteSide
from penstock.client.workload import model_of, workload_of
from penstock.measure.metric_store import Workload
from penstock.remote.connect import WorkerAddress

TEXTS, NUMBERS = st.text(max_size=12), st.integers(0, 10**6)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "str": TEXTS,
    "int": NUMBERS,
    "float": st.floats(0.5, 512),
    "tuple[str, ...]": st.lists(TEXTS, max_size=3).map(tuple),
}
INGREDIENTS = {field.name: KINDS[str(field.type)] for field in fields(Workload)}
WORKLOADS = st.builds(Workload, **INGREDIENTS)


@given(workload=WORKLOADS, changed=st.data())
def test_each_ingredient_changes_the_key(workload: Workload, changed: st.DataObject) -> None:
    name = changed.draw(st.sampled_from(sorted(INGREDIENTS)))
    value = changed.draw(INGREDIENTS[name].filter(lambda found: found != getattr(workload, name)))
    other = replace(workload, **{name: value})
    assert other.key != workload.key
    assert (other.setting == workload.setting) == (name == "model")


@given(workload=WORKLOADS)
def test_equal_workloads_have_one_key(workload: Workload) -> None:
    again = Workload(**{field.name: getattr(workload, field.name) for field in fields(workload)})
    assert (again.key, again.setting) == (workload.key, workload.setting)


class Numbers(Dataset[Any]):
    def __init__(self, length: int = 40, transform: Any = None) -> None:
        self.length, self.transform, self.opened = length, transform, object()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Others(Numbers):
    pass


class Scaled:
    def __init__(self, by: int) -> None:
        self.by = by

    def __repr__(self) -> str:
        return f"Scaled({self.by}) <at 0x{id(self):x}>".replace("<at", "<object at")


def listed(batch: list[Any]) -> list[Any]:
    return batch


def key(dataset: Any = None, side: RemoteSide | None = None, model: Any = "", **options: Any) -> str:
    given: dict[str, Any] = {"batch_size": 8, "num_workers": 2, **options}
    loader: Any = penstock.DataLoader(Numbers() if dataset is None else dataset, **given)
    return workload_of(loader._config, TorchArguments.of(loader), side, model=model).key


def side_of(*hosts: str, **options: Any) -> RemoteSide:
    addresses = tuple(WorkerAddress(host, 40000 + at, f"key {at}") for at, host in enumerate(hosts))
    return RemoteSide(open_ferry=lambda *_: None, addresses=addresses, **options)  # type: ignore[arg-type,return-value]


def test_what_decides_rates_changes_a_loaders_key() -> None:
    layer = torch.nn.Linear(2, 3)
    keys = [
        key(),
        key(Numbers(41)),
        key(Others()),
        key(Subset(Numbers(), range(40))),
        key(Numbers(transform=Scaled(2))),
        key(Numbers(transform=Scaled(3))),
        key(collate_fn=listed),
        key(batch_size=9),
        key(num_workers=3),
        key(device="cpu"),
        key(device="cpu", dtype=torch.float16),
        key(model="a name"),
        key(model=layer),
        key(model=torch.nn.Linear(3, 2)),
        key(model=torch.nn.Linear(2, 3).half()),
        key(side=side_of("10.0.0.1")),
        key(side=side_of("10.0.0.2")),
        key(side=side_of("10.0.0.1", "10.0.0.1")),
        key(side=side_of("10.0.0.1", plan="bytes")),
    ]
    assert len(set(keys)) == len(keys)


def test_what_does_not_decide_rates_leaves_it() -> None:
    assert key() == key(shuffle=True, seed=3) == key(timeout=5) == key(prefetch_factor=7)
    assert key(Numbers(transform=Scaled(2))) == key(Numbers(transform=Scaled(2)))
    first, second = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    assert model_of(first) == model_of(second)
    there = side_of("10.0.0.1")
    moved = replace(there, addresses=(WorkerAddress("10.0.0.1", 50000, "another key"),), share=0.5)
    assert key(side=there) == key(side=moved)
