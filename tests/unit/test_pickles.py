"""Structures of any shape through shared memory: a small skeleton and raw bytes, equal on the other side and not copied twice."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.pickles import Packed, Ref, is_plain, is_portable, rebuild, span_of, unpack

Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024


@dataclass
class Record:
    image: torch.Tensor
    label: int


class Memory:
    """An arena of the test's own."""

    def __init__(self, nbytes: int = 1 << 16) -> None:
        self.bytes = torch.full((nbytes,), 0xA5, dtype=torch.uint8)
        self.view = memoryview(self.bytes.numpy())
        self.start = self.bytes.data_ptr()

    def put(self, obj: object, offset: int, lent: Any = ()) -> Packed:
        packed = Packed(obj, self.start, lent)
        packed.write(self.view[offset : offset + packed.nbytes])
        assert bytes(self.view[offset + packed.nbytes :][:64]) == b"\xa5" * 64, (
            "nothing is written behind the end"
        )
        return packed

    def get(self, offset: int) -> Any:
        return unpack(self.view, offset, self.load)

    def load(self, ref: Ref) -> Any:
        assert ref.absolute
        return rebuild(ref, self.view[ref.offset : ref.offset + ref.nbytes])


def there_and_back(obj: object) -> Any:
    memory = Memory()
    memory.put(obj, 640)
    return memory.get(640)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert bytes_of(one).equal(bytes_of(other))
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, Record):
        assert_same(vars(one), vars(other))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert one == other


TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "a row": lambda: torch.arange(7.0),
    "one number": lambda: torch.tensor(3, dtype=torch.int16),
    "empty": lambda: torch.empty(0, 3),
    "empty in the middle": lambda: torch.empty(2, 0, 3, dtype=torch.int8),
    "bfloat16": lambda: torch.arange(6).bfloat16().view(2, 3),
    "float8": lambda: torch.arange(6).to(torch.float8_e4m3fn),
    "bool": lambda: torch.tensor([True, False]),
    "complex": lambda: torch.tensor([1 + 2j, 3j], dtype=torch.complex64),
    "uint16": lambda: torch.tensor([65535, 1], dtype=torch.uint16),
    "transposed": lambda: torch.arange(6).view(2, 3).T,
    "channels last": lambda: torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "every other": lambda: torch.arange(10)[::2],
    "with an offset": lambda: torch.arange(10)[4:],
    "expanded": lambda: torch.tensor([[1.0], [2.0]]).expand(2, 50),
    "one column of many": lambda: torch.rand(20, 100)[:, 3],
    "overlapping": lambda: torch.arange(8).as_strided((3, 4), (2, 1)),
}
ARRAYS: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
    "a row": lambda: np.arange(7.0),
    "one number": lambda: np.array(2.5),
    "empty": lambda: np.empty((0, 4), np.int8),
    "columns": lambda: np.asfortranarray(np.arange(6).reshape(2, 3)),
    "transposed cube": lambda: np.arange(24).reshape(2, 3, 4).T,
    "axes swapped": lambda: np.arange(24).reshape(2, 3, 4).swapaxes(1, 2),
    "backwards": lambda: np.arange(9)[::-2],
    "broadcast": lambda: np.broadcast_to(np.arange(3.0), (4, 3)),
    "the other byte order": lambda: np.arange(5, dtype=">i4"),
    "complex": lambda: np.array([1j, 2.0]),
    "bool": lambda: np.array([[True], [False]]),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_arrives_with_its_dtype_shape_and_strides(kind: str) -> None:
    tensor = TENSORS[kind]()
    arrived = there_and_back(tensor)
    assert_same(arrived, tensor)
    if kind != "one column of many":
        assert arrived.stride() == tensor.stride()


def test_a_thin_slice_does_not_drag_its_surroundings_along() -> None:
    assert Packed(torch.rand(20, 100)[:, 3]).nbytes < 20 * 4 + 600
    assert Packed(torch.ones(1, 1).expand(1000, 1000)).nbytes < 1000


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_arrives_with_its_dtype_shape_and_order(kind: str) -> None:
    array = ARRAYS[kind]()
    arrived = there_and_back(array)
    assert_same(arrived, array)
    if array.flags.f_contiguous:
        assert arrived.flags.f_contiguous


STRUCTURES: dict[str, Any] = {
    "plain values": [1, 2.5, True, None, "é", b"\x00", 3j, "\ud800"],
    "nested": {"a": [(torch.ones(2), {"b": np.zeros((2, 2))}), "text"], 3: (torch.tensor(1),)},
    "a named tuple": Pair(torch.ones(3), np.ones(1)),
    "a dataclass": Record(torch.arange(4), 7),
    "a subclass of dict": OrderedDict(b=torch.ones(1), a=2),
    "an array of objects": [np.array([{"a": 1}, None], dtype=object)],
    "an array of texts": [np.array(["ab", "c"])],
    "nothing": None,
    "empty containers": [[], {}, (), set()],
}


@pytest.mark.parametrize("kind", STRUCTURES)
def test_a_structure_arrives_equal(kind: str) -> None:
    if kind == "an array of objects":
        assert there_and_back(STRUCTURES[kind])[0].tolist() == [{"a": 1}, None]
    else:
        assert_same(there_and_back(STRUCTURES[kind]), STRUCTURES[kind])


LEAVES = (
    st.sampled_from(sorted(TENSORS)).map(lambda kind: TENSORS[kind]())
    | st.sampled_from(sorted(ARRAYS)).map(lambda kind: ARRAYS[kind]())
    | st.integers()
    | st.text(max_size=5)
    | st.none()
)


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        LEAVES,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.integers(0, 9), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_any_nesting_arrives_equal(structure: Any) -> None:
    assert_same(there_and_back(structure), structure)


def test_what_is_met_twice_stays_one() -> None:
    tensor, array, other = torch.zeros(3), np.zeros(3), torch.zeros(3)
    arrived = there_and_back([tensor, {"a": (array, tensor)}, array, other, other[:]])
    assert arrived[0] is arrived[1]["a"][1]
    assert arrived[2] is arrived[1]["a"][0]
    arrived[0].fill_(5)
    assert arrived[3].tolist() == arrived[4].tolist() == [0, 0, 0]


# ---- memory


def test_what_arrives_is_the_memory_itself() -> None:
    memory = Memory()
    memory.put([torch.zeros(3), np.zeros(3)], 640)
    tensor, array = memory.get(640)
    tensor.fill_(7)
    array.fill(9)
    again = memory.get(640)
    assert again[0].tolist() == [7] * 3
    assert again[1].tolist() == [9] * 3


def test_a_view_lives_as_long_as_the_tensor_or_array_over_it() -> None:
    memory = Memory()
    memory.put([torch.zeros(3), np.zeros(3)], 640)
    views: list[Any] = []

    def load(ref: Ref) -> Any:
        view = memory.view[ref.offset : ref.offset + ref.nbytes]
        views.append(weakref.ref(view))
        return rebuild(ref, view)

    tensor, array = unpack(memory.view, 640, load)
    column, part = tensor[:1].numpy(), array[1:].reshape(-1)
    del tensor, array
    gc.collect()
    assert all(view() is not None for view in views)
    del column, part
    assert all(view() is None for view in views)


def test_tensors_that_lie_in_lent_memory_are_referred_to_and_not_copied() -> None:
    memory = Memory()
    memory.put([torch.arange(100.0), torch.arange(50.0)], 640)
    first, second = memory.get(640)
    lent = sorted(
        (t.data_ptr() - memory.start, t.data_ptr() - memory.start + t.nbytes) for t in (first, second)
    )
    packed = memory.put({"a": first[10:20], "b": (second, torch.ones(2))}, 8192, lent)
    assert packed.refers
    assert packed.nbytes < 1000
    arrived = memory.get(8192)
    assert arrived["a"].data_ptr() == first[10:].data_ptr()
    assert arrived["b"][0].data_ptr() == second.data_ptr()
    assert arrived["b"][1].tolist() == [1, 1]


def test_memory_of_the_arena_that_was_not_lent_is_copied() -> None:
    memory = Memory()
    memory.put(torch.arange(100.0), 640)
    tensor = memory.get(640)
    at = tensor.data_ptr() - memory.start
    packed = memory.put(tensor, 8192, [(at, at + 40), (at + 2000, at + 4000)])
    assert not packed.refers
    assert memory.get(8192).data_ptr() != tensor.data_ptr()


# ---- what may travel between workers


PORTABLE = [1, "a", None, [torch.ones(1), {"a": (np.ones(1), np.float32(1))}], 2.5, b"", {}, {("a", 1): 2}]
UNPORTABLE = [
    Pair(1, 2),
    OrderedDict(),
    object(),
    {1},
    lambda: 0,
    [1, {"a": Record(torch.ones(1), 1)}],
    {Pair(1, 2): 1},
    torch.ones(1, requires_grad=True),
    torch.nn.Parameter(torch.ones(1)),
    torch.eye(2).to_sparse(),
    np.array(["a"]),
    np.array([None]),
    np.ma.masked_array([1]),
    iter([]),
]


@pytest.mark.parametrize("value", PORTABLE, ids=str)
def test_plain_types_may_travel(value: Any) -> None:
    assert is_portable(value)


@pytest.mark.parametrize("value", UNPORTABLE, ids=lambda value: type(value).__name__)
def test_what_runs_someones_code_stays_with_its_worker(value: Any) -> None:
    assert not is_portable(value)


def test_lazy_tensors_are_not_plain_memory() -> None:
    z = torch.tensor([1 + 1j])
    assert is_plain(z)
    assert not is_plain(z.conj())
    assert not is_plain(z.conj().imag)
    assert not is_plain(torch.empty(2, device="meta"))


@given(st.lists(st.integers(1, 4), max_size=4), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_the_span_of_a_tensor_is_from_its_first_to_its_last_element(
    shape: list[int], stride: list[int]
) -> None:
    tensor = torch.arange(200).as_strided(shape, stride[: len(shape)])
    assert span_of(tensor) == int(tensor.max()) + 1
