"""Samples of every kind through torch's default collate: the batch's values, dtypes, types and structure, or the error.

Sample k is a function of k, so that a batch can mix kinds: torch decides by the first sample of a batch, and by what the
others turn out to be.
"""

from __future__ import annotations

import collections
import datetime as dt
import enum
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from .datasets import Made, Point, Record, Tagged
from .harness import Loader, assert_same, drain


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


class ListOfOnes(list[Any]):
    """A list with something of its own."""

    note = "kept"


class Opaque:
    """Nothing torch knows how to batch."""


class Described(dict[str, Any]):
    """A dict with an attribute, which torch's collate keeps by copying the first sample."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.origin = "somewhere"


class ReadOnly(Mapping[str, Any]):
    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def __iter__(self) -> Any:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)


Make = Callable[[int], Any]
TORCH_DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
]
NUMPY_DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


def torch_of(name: str) -> Make:
    return lambda k: torch.tensor([k, 1]).to(getattr(torch, name))


def array_of(name: str) -> Make:
    return lambda k: np.array([[k, 1], [2, 3]]).astype(name)


TENSORS: dict[str, Make] = {
    "zero-dim": lambda k: torch.tensor(float(k)),
    "empty": lambda k: torch.empty(0),
    "empty, three dims": lambda k: torch.empty(2, 0, 3),
    "image": lambda k: torch.full((3, 4, 5), k, dtype=torch.uint8),
    "transposed": lambda k: torch.arange(6).view(2, 3).t() + k,
    "slice of a larger one": lambda k: torch.arange(100).view(10, 10)[k : k + 2, :8],
    "expanded": lambda k: torch.tensor([k]).expand(4),
    "channels last": lambda k: torch.full((1, 3, 2, 2), float(k)).contiguous(
        memory_format=torch.channels_last
    ),
    "conjugate view": lambda k: torch.tensor([k + 1j]).conj(),
    "subclass": lambda k: torch.tensor([k, 1]).as_subclass(Tagged),
    "parameter": lambda k: torch.nn.Parameter(torch.tensor([float(k)])),
    "requires grad": lambda k: torch.tensor([float(k)], requires_grad=True),
    "ragged": lambda k: torch.zeros(k + 1),
    "ragged in the last batch only": lambda k: torch.zeros(2 if k > 3 else 1),
    "different dims": lambda k: torch.zeros(*([2] * (k % 2 + 1))),
    "mixed dtypes, float first": lambda k: torch.tensor([k], dtype=(torch.float32, torch.float64)[k % 2]),
    "mixed dtypes, int first": lambda k: torch.tensor([k], dtype=(torch.int64, torch.float32)[k % 2]),
    "mixed dtypes, narrow first": lambda k: torch.tensor([k], dtype=(torch.uint8, torch.int32)[k % 2]),
    "tensor and array": lambda k: (torch.tensor([k]), np.array([k]))[k % 2],
    "sparse": lambda k: torch.eye(2).to_sparse(),
    "nested": lambda k: torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)]),
    "nan and infinity": lambda k: torch.tensor([float("nan"), float("inf"), -0.0]),
    "meta": lambda k: torch.empty(2, device="meta").shape,
    **{f"torch {name}": torch_of(name) for name in TORCH_DTYPES},
}
ARRAYS: dict[str, Make] = {
    "zero-dim": np.array,
    "empty": lambda k: np.empty((0, 3)),
    "fortran": lambda k: np.asfortranarray(np.arange(6).reshape(2, 3) + k),
    "negative strides": lambda k: np.arange(4)[::-1],
    "read-only": lambda k: np.frombuffer(bytes([k, 2, 3]), dtype=np.uint8),
    "big-endian": lambda k: np.array([k], dtype=">i4"),
    "strings": lambda k: np.array(["a", "bc"]),
    "objects": lambda k: np.array([None, k], dtype=object),
    "dates": lambda k: np.array(["2020-01-01"], dtype="datetime64[D]"),
    "records": lambda k: np.zeros(2, dtype=[("a", int), ("b", float)]),
    "ragged": np.zeros,
    "matrix": lambda k: np.matrix([[k, 1]]),
    "masked": lambda k: np.ma.masked_array([k, 1], mask=[False, True]),
    "mixed dtypes": lambda k: np.array([k], dtype=("float32", "float64")[k % 2]),
    **{f"numpy {name}": array_of(name) for name in NUMPY_DTYPES},
    **{f"scalar {name}": np.dtype(name).type for name in NUMPY_DTYPES},
    "scalar string": lambda k: np.str_(f"s{k}"),
    "scalar bytes": lambda k: np.bytes_(b"s%d" % k),
    "scalar date": lambda k: np.datetime64("2020-01-01"),
    "scalar of mixed dtypes": lambda k: (np.float32(k), np.int64(k))[k % 2],
}
PLAIN: dict[str, Make] = {
    "int": int,
    "int, negative": lambda k: -k,
    "int, largest": lambda k: 2**63 - 1 - k,
    "int, too large": lambda k: 2**63 + k,
    "int, too large in the second batch": lambda k: 2**70 if k == 3 else k,
    "bool": lambda k: k % 2 == 0,
    "float": float,
    "float, not finite": lambda k: (float("nan"), float("inf"))[k % 2],
    "complex": lambda k: complex(k, 1),
    "int then float": lambda k: k if k % 2 == 0 else k + 0.5,
    "float then int": lambda k: k + 0.5 if k % 2 == 0 else k,
    "bool then int": lambda k: k % 2 == 0 if k % 2 == 0 else k,
    "int then bool": lambda k: k if k % 2 == 0 else True,
    "int then none": lambda k: k if k % 2 == 0 else None,
    "int then str": lambda k: k if k % 2 == 0 else "s",
    "str then int": lambda k: "s" if k % 2 == 0 else k,
    "int then tensor": lambda k: k if k % 2 == 0 else torch.tensor(k),
    "enum": lambda k: (Colour.RED, Colour.BLUE)[k % 2],
    "none": lambda k: None,
    "str": lambda k: f"s{k}",
    "str, empty": lambda k: "",
    "str, not ascii": lambda k: "ü€\U0001f600\0" + chr(0xD800),
    "str, huge": lambda k: f"{k}" * 700_000,
    "bytes": lambda k: bytes([k, 0, 255]),
    "bytearray": lambda k: bytearray([k]),
    "decimal": Decimal,
    "date": lambda k: dt.date(2020, 1, 1),
    "set": lambda k: {k},
    "class": lambda k: Opaque(),
    "function": lambda k: len,
    "ellipsis": lambda k: ...,
}
STRUCTURES: dict[str, Make] = {
    "pair": lambda k: (torch.full((2, 2), float(k)), k),
    "list": lambda k: [torch.tensor([k]), float(k)],
    "dict": lambda k: {"x": torch.tensor([k]), "y": k, "name": f"s{k}"},
    "dict, keys in another order": lambda k: {"b": k, "a": 1} if k % 2 else {"a": 1, "b": k},
    "dict, keys of many types": lambda k: {1: k, ("a", 2): k, None: "x", b"b": k},
    "dict, a key missing": lambda k: {"a": k, "b": k} if k % 2 == 0 else {"a": k},
    "dict, a key too many": lambda k: {"a": k} if k % 2 == 0 else {"a": k, "b": k},
    "nested": lambda k: {"a": {"b": [k, (torch.tensor(k), "s")], "c": np.array([k])}, "d": ((k,), [[k]])},
    "namedtuple": lambda k: Point(k, torch.tensor([k])),
    "namedtuple in a dict in a tuple": lambda k: ({"p": Point(k, f"{k}")}, k),
    "dataclass": lambda k: Record(torch.tensor([k]), k),
    "ordered dict": lambda k: collections.OrderedDict(z=k, a=k),
    "default dict": lambda k: collections.defaultdict(list, a=k),
    "counter": lambda k: collections.Counter(a=k),
    "dict subclass": lambda k: Described(a=k),
    "read-only mapping": lambda k: ReadOnly({"a": k}),
    "list subclass": lambda k: ListOfOnes([k, k]),
    "deque": lambda k: collections.deque([k, k]),
    "range": lambda k: range(k, k + 2),
    "empty tuple": lambda k: (),
    "empty list": lambda k: [],
    "empty dict": lambda k: {},
    "lengths differ": lambda k: [0] * (k + 1),
    "tuple then list": lambda k: (k, k) if k % 2 == 0 else [k, k],
    "dict then tuple": lambda k: {"a": k} if k % 2 == 0 else (k,),
    "none inside": lambda k: (k, None),
    "class inside": lambda k: {"a": {"b": Opaque()}},
    "ragged inside": lambda k: {"fixed": torch.zeros(2), "ragged": torch.zeros(k + 1)},
    "one object twice": lambda k: [shared := torch.tensor([k]), shared],
    "strings inside": lambda k: ([f"s{k}", "t"], (b"u",)),
    "many fields": lambda k: {f"f{i}": torch.tensor([k, i]) for i in range(40)},
    "deep": lambda k: [[[[[[k]]]]]],
    "size": lambda k: torch.Size([k, 2]),
}
ALL: dict[str, Make] = {
    **{f"tensor: {name}": make for name, make in TENSORS.items()},
    **{f"array: {name}": make for name, make in ARRAYS.items()},
    **{f"plain: {name}": make for name, make in PLAIN.items()},
    **{f"structure: {name}": make for name, make in STRUCTURES.items()},
}


GROUPS = {"tensors": TENSORS, "arrays": ARRAYS, "plain": PLAIN, "structures": STRUCTURES}
# Kinds that meet the engine alone, epoch after epoch alike, as most programs have them.
ALONE = """tensor: zero-dim|tensor: empty|tensor: image|tensor: transposed|tensor: subclass|tensor: ragged
tensor: ragged in the last batch only|tensor: mixed dtypes, int first|tensor: torch bfloat16|tensor: torch bool|array: fortran
array: read-only|array: numpy float16|array: scalar float32|plain: int|plain: int, too large in the second batch|plain: bool
plain: float|plain: int then float|plain: none|plain: str, huge|structure: pair|structure: dict|structure: nested
structure: namedtuple|structure: dict, a key missing|structure: ragged inside|structure: ordered dict""".replace(
    "\n", "|"
)


@pytest.mark.parametrize("name", ALL)
def test_a_sample_of_this_kind_is_batched_as_torch_batches_it(name: str) -> None:
    assert_same(lambda L: drain(L(Made(5, ALL[name]), 2)))


@pytest.mark.parametrize("name", ALONE.split("|"))
def test_workers_batch_samples_of_this_kind_as_torchs_do(name: str) -> None:
    assert_same(lambda L: drain(L(Made(5, ALL[name]), 2, num_workers=2)))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_batches_of_all_kinds_after_each_other_are_what_torch_makes_of_them(
    group: str, num_workers: int
) -> None:
    makes = GROUPS[group]
    batches = [[(name, k) for k in keys] for name in makes for keys in ((0, 1), (2, 3), (4,))]

    def case(loader_class: Loader) -> object:
        dataset = Made(0, lambda key: makes[key[0]](key[1]))
        events = drain(loader_class(dataset, batch_sampler=batches, num_workers=num_workers), limit=400)
        return {str(batch): event for batch, event in zip([*batches, "end"], events, strict=True)}

    assert_same(case)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_all_kinds_are_converted_as_torch_does_without_batching(
    group: str, num_workers: int
) -> None:
    makes = GROUPS[group]

    def case(loader_class: Loader) -> object:
        dataset = Made(0, lambda key: makes[key](3))
        events = drain(loader_class(dataset, None, sampler=list(makes), num_workers=num_workers), limit=400)
        return dict(zip([*makes, "end"], events, strict=True))

    assert_same(case)
