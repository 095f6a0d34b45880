"""Collate functions of the user's: what they receive, and that what they return arrives unchanged."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate, default_convert, get_worker_info

from .datasets import Made, Picked, Point, Record, Scaled, Streamed, Tagged, keep, pairs
from .harness import Loader, assert_same, drain

Collate = Callable[[list[Any]], Any]


def image_and_label(key: int) -> tuple[torch.Tensor, int]:
    return torch.full((2, 3, 4), float(key)), key


def images(samples: list[Any]) -> torch.Tensor:
    return torch.stack([image for image, _ in samples])


def with_a_slice_of_another(samples: list[Any]) -> list[torch.Tensor]:
    whole = images(samples)
    return [whole, whole[0], whole[..., ::2], whole.view(-1)[3:5]]


COLLATES: dict[str, Collate] = {
    "the list itself": keep,
    "tuples by zip": pairs,
    "lambda": lambda samples: tuple(zip(*samples, strict=True)),
    "default collate of the labels": lambda samples: default_collate([label for _, label in samples]),
    "partial": functools.partial(max, key=lambda sample: sample[1]),
    "none": lambda samples: None,
    "int": len,
    "string": str,
    "bytes": lambda samples: os.fsencode("b" * 5000),
    "custom class": lambda samples: Picked([label for _, label in samples]),
    "dataclass": lambda samples: Record(images(samples), len(samples)),
    "namedtuple": lambda samples: Point(images(samples), [label for _, label in samples]),
    "dict": lambda samples: {"images": images(samples), "labels": [label for _, label in samples]},
    "dict of dataclasses": lambda samples: {label: Record(image, label) for image, label in samples},
    "array": lambda samples: images(samples).numpy(),
    "fortran array": lambda samples: np.asfortranarray(np.ones((2, len(samples)))),
    "object array": lambda samples: np.array([None, "a", 3], dtype=object),
    "transposed": lambda samples: images(samples).transpose(0, 1),
    "channels last": lambda samples: images(samples).contiguous(memory_format=torch.channels_last),
    "expanded": lambda samples: images(samples)[:1].expand(5, 2, 3, 4),
    "strided slice": lambda samples: images(samples)[..., ::2],
    "views of one storage": with_a_slice_of_another,
    "sparse": lambda samples: images(samples)[0, 0].to_sparse(),
    "sparse rows": lambda samples: images(samples)[0, 0].to_sparse_csr(),
    "empty": lambda samples: torch.empty(0, 3),
    "zero-dim": lambda samples: torch.tensor(float(len(samples))),
    "subclass": lambda samples: images(samples).as_subclass(Tagged),
    "parameter": lambda samples: torch.nn.Parameter(images(samples)),
    "requires grad": lambda samples: torch.ones(2, requires_grad=True),
    "bfloat16": lambda samples: images(samples).bfloat16(),
    "bool": lambda samples: images(samples) > 1,
    "complex": lambda samples: torch.complex(images(samples), images(samples)),
    "conjugate": lambda samples: torch.tensor([1 + 2j]).conj(),
    "packed sequence": lambda samples: torch.nn.utils.rnn.pack_sequence([torch.zeros(2), torch.zeros(1)]),
    "ragged list": lambda samples: [torch.zeros(label) for _, label in samples],
    "set": lambda samples: {label for _, label in samples},
    "deeply mixed": lambda samples: {"a": [(images(samples), None, {"b": {1, 2}}), Picked([1.0])], 3: ...},
    "types and dtypes": lambda samples: [torch.float32, torch.device("cpu"), torch.Size([2]), int],
    "lengths and type of the list": lambda samples: [type(samples).__name__, len(samples)],
}


# Those that meet the engine alone, batch after batch alike, as most programs have them.
ALONE = [
    "the list itself",
    "tuples by zip",
    "lambda",
    "custom class",
    "dict",
    "array",
    "channels last",
    "views of one storage",
    "ragged list",
]


@pytest.mark.parametrize(
    ("name", "num_workers"), [*((name, 0) for name in COLLATES), *((name, 2) for name in ALONE)]
)
def test_what_a_collate_function_returns_arrives_as_from_torch(name: str, num_workers: int) -> None:
    assert_same(
        lambda L: drain(L(Made(5, image_and_label), 2, collate_fn=COLLATES[name], num_workers=num_workers))
    )


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_batches_of_all_kinds_after_each_other_arrive_as_from_torch(num_workers: int) -> None:
    batches = [[(name, k) for k in keys] for name in COLLATES for keys in ((0, 1), (2, 3), (4,))]

    def chosen(samples: list[Any]) -> Any:
        return COLLATES[samples[0][0]]([sample for _, sample in samples])

    def case(loader_class: Loader) -> object:
        dataset = Made(0, lambda key: (key[0], image_and_label(key[1])))
        loader = loader_class(dataset, batch_sampler=batches, collate_fn=chosen, num_workers=num_workers)
        events = drain(loader, limit=400)
        return {str(batch): event for batch, event in zip([*batches, "end"], events, strict=True)}

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_collate_function_without_batching_receives_single_samples(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        settings: dict[str, Any] = {"num_workers": num_workers, "collate_fn": lambda sample: ("one", sample)}
        return [
            drain(loader_class(Made(3, image_and_label), None, **settings)),
            drain(loader_class(Streamed(3), None, **settings)),
        ]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_collate_function_of_an_iterable_dataset_receives_the_batch(num_workers: int) -> None:
    assert_same(lambda L: drain(L(Streamed(5), 2, collate_fn=keep, num_workers=num_workers)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_collate_runs_once_per_batch_over_the_samples_in_order(num_workers: int) -> None:
    assert_same(lambda L: drain(L(Made(50, int), 16, collate_fn=keep, num_workers=num_workers)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_collate_runs_where_torch_runs_it(num_workers: int) -> None:
    """In a worker when there are workers, so that its cost is not the training loop's."""

    def where(samples: list[Any]) -> list[Any]:
        info = get_worker_info()
        return [
            os.getpid() == here,
            info and info.num_workers,
            torch.get_num_threads() == 1 if info else None,
        ]

    here = os.getpid()
    assert_same(lambda L: drain(L(Made(4, int), 2, collate_fn=where, num_workers=num_workers)))


def test_without_workers_the_very_objects_of_the_dataset_arrive() -> None:
    samples = [torch.zeros(2), torch.ones(2)]

    def case(loader_class: Loader) -> object:
        batch = next(iter(loader_class(samples, 2, collate_fn=keep)))  # type: ignore[arg-type]
        single = next(iter(loader_class(samples, None)))  # type: ignore[arg-type]
        return [batch[0] is samples[0], batch[1] is samples[1], single is samples[0]]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_patched_default_collate_map_is_followed(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map

    def as_count(batch: Any, *, collate_fn_map: Any) -> int:
        return len(batch)

    monkeypatch.setitem(default_collate_fn_map, Record, as_count)
    assert_same(lambda L: drain(L(Made(5, lambda k: Record(torch.zeros(1), k)), 2, num_workers=num_workers)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_patched_collate_of_tensors_is_followed(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map

    def padded(batch: Any, *, collate_fn_map: Any) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(list(batch), batch_first=True)

    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, padded)
    assert_same(lambda L: drain(L(Made(5, lambda k: torch.ones(k + 1)), 2, num_workers=num_workers)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_thin_slice_arrives_with_its_values_though_not_with_all_it_was_cut_from(num_workers: int) -> None:
    """Torch sends the whole storage behind it; its strides are not compared."""

    def case(loader_class: Loader) -> object:
        thin: Collate = lambda samples: torch.arange(1000).view(10, 100)[:, :: len(samples) * 7]  # noqa: E731
        return [
            batch.tolist()
            for batch in loader_class(Made(5, int), 2, collate_fn=thin, num_workers=num_workers)
        ]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_default_convert_as_collate_keeps_the_list_of_tensors(num_workers: int) -> None:
    assert_same(lambda L: drain(L(Scaled(5), 2, collate_fn=default_convert, num_workers=num_workers)))
