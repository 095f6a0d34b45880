"""Values between machines: what arrives is what was sent, to the bit, and what was not sent so is refused."""

from __future__ import annotations

import gc
import json
import math
import struct
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.remote import values
from penstock.remote.values import BadValue, NotPortable, decode, encode
from penstock.wire.dtypes import NUMPY, TORCH
from penstock.wire.pickles import span_of
from tests.unit.test_pickles import ARRAYS, TENSORS

Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024


def there_and_back(value: Any) -> Any:
    skeleton, buffers = encode(value)
    return decode(skeleton, [memoryview(bytearray(data)) for data in buffers])


def bits(number: float) -> bytes:
    return struct.pack("<d", number)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    compact = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return compact.view(-1).view(torch.uint8)


def assert_same(one: Any, other: Any) -> None:
    """The same types and bits all the way down."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert as_bytes(one).equal(as_bytes(other))
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.dtype.char, one.dtype.str) == (other.dtype, other.dtype.char, other.dtype.str)
        assert (one.shape, one.tobytes()) == (other.shape, other.tobytes())
        assert one.flags.f_contiguous == other.flags.f_contiguous or not other.flags.forc
    elif isinstance(one, np.generic):
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, dict):
        assert len(one) == len(other)
        for mine, theirs in zip(one.items(), other.items(), strict=True):
            assert_same(mine, theirs)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    elif isinstance(one, float):
        assert bits(one) == bits(other)
    elif isinstance(one, complex):
        assert (bits(one.real), bits(one.imag)) == (bits(other.real), bits(other.imag))
    else:
        assert one == other


# ---- there and back


@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_arrives_with_its_dtype_shape_and_strides(kind: str) -> None:
    tensor = TENSORS[kind]()
    thin = span_of(tensor) > 2 * max(1, tensor.numel())
    assert_same(there_and_back(tensor), tensor.contiguous() if thin else tensor)


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_arrives_with_its_dtype_shape_and_order(kind: str) -> None:
    assert_same(there_and_back(ARRAYS[kind]()), ARRAYS[kind]())


@pytest.mark.parametrize("name", TORCH)
def test_every_dtype_of_torch_arrives(name: str) -> None:
    size = TORCH[name].itemsize
    assert_same(there_and_back(made := torch.arange(6 * size).byte().view(TORCH[name])), made)


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("order", "<>")
def test_every_dtype_of_numpy_arrives_as_an_array_and_as_a_number(name: str, order: str) -> None:
    dtype = np.dtype(NUMPY[name]).newbyteorder(order)
    data = bytes(range(1, 1 + 3 * dtype.itemsize)) if name != "bool" else b"\0\1\1"
    array = np.frombuffer(data, dtype)
    assert_same(there_and_back(array), array)
    number = array.astype(NUMPY[name])[1]
    assert type(number) is NUMPY[name]
    assert_same(there_and_back(number), number)


ODD_FLOATS = [0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, 5e-324, 1.7976931348623157e308, 1e22, 0.1]
ODD_FLOATS.append(struct.unpack("<d", b"\x01\x02\x03\x04\x05\x06\xf8\xff")[0])  # a NaN that says something
PLAIN: list[Any] = [
    None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**6000, -(7**5000), *ODD_FLOATS,
    *(complex(a, b) for a in ODD_FLOATS for b in (0.0, -0.0, math.nan)),
    "", "text", "é☃😀", "\ud83d\ude00", "\ud800", "\udc00x", "\0", "a" * 257, "é" * 10_000, b"", b"\0\xff", bytes(300),
    [], (), {}, [[]], [()], ({},), {(): ()}, {(1, ("a", None, b"", 2.5, 1j, True)): 1}, {math.nan: 1}, {np.int8(1): 1},
    {1: "a", "1": "b", None: "c", b"1": "d"}, np.float32("nan"), np.bool_(True), "list", ["list"], ["again", 0],
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=range(len(PLAIN)))
def test_a_plain_value_arrives_to_the_bit(value: Any) -> None:
    assert_same(there_and_back(value), value)


LEAVES = (
    st.sampled_from(sorted(TENSORS.keys() - {"one column of many"})).map(lambda kind: TENSORS[kind]())
    | st.sampled_from(sorted(ARRAYS)).map(lambda kind: ARRAYS[kind]())
    | st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 200), 1 << 200)
    | st.binary(min_size=8, max_size=8).map(lambda data: struct.unpack("<d", data)[0])
    | st.complex_numbers()
    | st.text(st.characters(), max_size=9)
    | st.text(st.characters(min_codepoint=0xD7FF, max_codepoint=0xE000), max_size=9)
    | st.binary(max_size=9)
    | st.builds(np.float16, st.floats(width=16))
    | st.builds(np.int64, st.integers(-(1 << 63), (1 << 63) - 1))
)
KEYS = (
    st.none()
    | st.integers()
    | st.text(st.characters(), max_size=3)
    | st.tuples(st.booleans(), st.binary(max_size=2))
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(VALUES)
def test_any_nesting_arrives_to_the_bit(value: Any) -> None:
    assert_same(there_and_back(value), value)


@st.composite
def strided(draw: st.DrawFn) -> torch.Tensor:
    """Any view of some memory: permuted, expanded, cut, overlapping."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    stride = [draw(st.integers(0, 12)) for _ in shape]
    dtype = draw(st.sampled_from([torch.uint8, torch.float32, torch.bfloat16, torch.complex128]))
    base = torch.arange(4 * 3 * 12 + 20).to(dtype)
    return base.as_strided(shape, stride, draw(st.integers(0, 9)))


@settings(max_examples=200)
@given(strided())
def test_any_view_arrives_with_its_strides_unless_it_is_thin(tensor: torch.Tensor) -> None:
    thin = span_of(tensor) > 2 * max(1, tensor.numel())
    assert_same(there_and_back(tensor), tensor.contiguous() if thin else tensor)


def test_what_is_met_twice_stays_one() -> None:
    tensor, array, empty = torch.zeros(3), np.zeros(3), torch.empty(0)
    arrived = there_and_back([tensor, {"a": (array, tensor)}, array, empty, empty, tensor[:]])
    assert arrived[0] is arrived[1]["a"][1]
    assert arrived[2] is arrived[1]["a"][0]
    assert arrived[3] is arrived[4]
    assert arrived[5] is not arrived[0]


# ---- memory


def test_tensors_and_arrays_lie_in_the_buffers_and_keep_them() -> None:
    skeleton, buffers = encode([torch.zeros(3), np.zeros(3)])
    memory = [bytearray(data) for data in buffers]
    views = [memoryview(data) for data in memory]
    alive = [weakref.ref(view) for view in views]
    tensor, array = decode(skeleton, views)
    tensor.fill_(1)
    array.fill(1)
    assert [bytes(data) for data in memory] == [torch.ones(3).numpy().tobytes(), np.ones(3).tobytes()]
    del views, tensor, array
    gc.collect()
    assert [view() for view in alive] == [None, None]


def test_encoding_copies_no_compact_memory() -> None:
    tensor, array = torch.zeros(3), np.zeros((2, 2), order="F")
    _, buffers = encode([tensor, array])
    tensor.fill_(1)
    array.fill(1)
    assert [bytes(data) for data in buffers] == [torch.ones(3).numpy().tobytes(), np.ones(4).tobytes()]


@pytest.mark.parametrize("at", [0, 1])
def test_memory_that_is_read_only_or_unaligned_is_copied(at: int) -> None:
    skeleton, buffers = encode([torch.arange(3.0), np.arange(3.0)])
    sent = [bytes(at) + bytes(data) for data in buffers]
    for memory in (
        [memoryview(data)[at:] for data in sent],
        [memoryview(bytearray(data))[at:] for data in sent],
    ):
        tensor, array = decode(skeleton, memory)
        assert (tensor.tolist(), array.tolist()) == ([0, 1, 2], [0, 1, 2])
        assert array.flags.writeable
        assert array.flags.aligned
        tensor += 1


# ---- what is not sent


class Text(str):
    """Not exactly a text."""


def deep(levels: int) -> Any:
    return None if levels == 1 else [deep(levels - 1)]


def deep_key(levels: int) -> Any:
    return None if levels == 1 else (deep_key(levels - 1),)


def loop() -> Any:
    made: list[Any] = []
    made.append(made)
    return made


def doubled() -> Any:
    """Small in memory, but of 2 to the power of 40 parts."""
    made: Any = [0]
    for _ in range(40):
        made = [made, made]
    return made


UNPORTABLE: dict[str, Callable[[], Any]] = {
    "a named tuple": lambda: Pair(1, 2),
    "a subclass of dict": OrderedDict,
    "a subclass of str": lambda: Text("a"),
    "a set": lambda: {1},
    "an object": object,
    "a function": lambda: len,
    "a tensor that wants gradients": lambda: torch.ones(2, requires_grad=True),
    "a subclass of tensor": lambda: torch.nn.Parameter(torch.ones(1), requires_grad=False),
    "a sparse tensor": lambda: torch.eye(2).to_sparse(),
    "a conjugated tensor": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "a tensor elsewhere": lambda: torch.ones(2, device="meta"),
    "an array of objects": lambda: np.array([None]),
    "an array of texts": lambda: np.array(["a"]),
    "an array of records": lambda: np.zeros(2, "i4,f4"),
    "an array of times": lambda: np.zeros(2, "M8[s]"),
    "an array of numbers that differ between machines": lambda: np.zeros(2, np.longdouble),
    "such a number": lambda: np.longdouble(1),
    "a span of time": lambda: np.timedelta64(1, "s"),
    "a subclass of array": lambda: np.ma.masked_array([1, 2]),
    "nine dimensions of a tensor": lambda: torch.zeros((1,) * 9),
    "nine dimensions of an array": lambda: np.zeros((1,) * 9),
    "a very large tensor": lambda: torch.zeros(1).expand(1 << 41),
    "a tensor as a key": lambda: {torch.ones(1): 1},
    "a tuple with an object as a key": lambda: {(1, object()): 1},
    "a key that is nested too deeply": lambda: {deep_key(70): 1},
    "65 levels": lambda: deep(65),
    "a list that holds itself": loop,
    "a list of very many parts": doubled,
}


@pytest.mark.parametrize("kind", UNPORTABLE)
def test_what_is_not_portable_is_not_sent(kind: str) -> None:
    with pytest.raises(NotPortable):
        encode({"deep": [UNPORTABLE[kind]()] if kind != "65 levels" else deep(64)})


def test_a_value_at_the_limits_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same(there_and_back(deep(64)), deep(64))
    monkeypatch.setattr(values, "MAX_NODES", 4)
    assert there_and_back([1, 2, 3]) == [1, 2, 3]
    with pytest.raises(NotPortable, match="more than 4 parts"):
        encode([1, 2, 3, 4])


# ---- what is refused


B = memoryview(bytearray(24))
BAD: dict[str, tuple[Any, list[memoryview], str]] = {
    "an object": ({"a": 1}, [], "no value is described"),
    "an empty list": ([], [], "no value is described"),
    "another name": (["object", 1], [], "no value is described"),
    "a name of ours that is no type": (["_take", 1], [], "no value is described"),
    "a name that is a list": ([["list"]], [], "no value is described"),
    "a key without a value": (["dict", 1], [], "no value is described"),
    "a key twice": (["dict", 1, 2, True, 3], [], "a key twice"),
    "a key that is a list": (["dict", ["list"], 1], [], "a list is no key"),
    "a key that is a tensor": (["dict", ["tensor", "uint8", [24], [1]], 1], [B], "a Tensor is no key"),
    "a whole number without digits": (["int", "0x"], [], "no value is described"),
    "a whole number that is one": (["int", 5], [], "no value is described"),
    "a float of nine bytes": (["float", "00" * 9], [], "no value is described"),
    "a float of no digits": (["float", "zz" * 8], [], "no value is described"),
    "a float that is one": (["float", 1.5], [], "no value is described"),
    "a complex of eight bytes": (["complex", "00" * 8], [], "no value is described"),
    "a number of another size": (["number", "int32", "00" * 8], [], "no value is described"),
    "a number of another type": (["number", "object_", "00" * 8], [], "not a name"),
    "a number whose type is no name": (["number", [], "00"], [], "not a name"),
    "parts too many": (["tensor", "uint8", [24], [1], 1], [B], "no value is described"),
    "parts too few": (["tensor", "uint8", [24]], [B], "no value is described"),
    "a dtype of torch that is something else": (["tensor", "load", [24], [1]], [B], "not a name"),
    "a dtype of numpy as text": (["array", "O", "|", 0, [3]], [B], "not a name"),
    "another byte order": (["array", "int8", "=", 0, [24]], [B], "no value is described"),
    "an order that is a list": (["array", "int8", [], 0, [24]], [B], "no value is described"),
    "another memory order": (["array", "int8", "|", 2, [24]], [B], "no value is described"),
    "sizes that are no list": (["tensor", "uint8", 24, [1]], [B], "whole numbers"),
    "sizes with a point": (["tensor", "uint8", [24.0], [1]], [B], "whole numbers"),
    "sizes that are truth values": (["array", "int8", "|", 0, [True]], [B], "whole numbers"),
    "nine dimensions": (["tensor", "uint8", [1] * 8 + [24], [1] * 9], [B], "no value is described"),
    "nine dimensions of an array": (["array", "uint8", "|", 0, [1] * 8 + [24]], [B], "no value is described"),
    "a negative size": (["tensor", "uint8", [-1, -24], [1, 1]], [B], "no value is described"),
    "a negative stride": (["tensor", "uint8", [24], [-1]], [B], "no value is described"),
    "strides missing": (["tensor", "uint8", [24, 1], [1]], [B], "no value is described"),
    "strides too many": (["tensor", "uint8", [24], [1, 1]], [B], "no value is described"),
    "a product that wraps around": (["tensor", "uint8", [1 << 32] * 2 + [24], [0, 0, 1]], [B], "no value is described"),
    "a wide empty tensor": (["tensor", "uint8", [1 << 40, 1 << 40, 0], [0, 0, 0]], [], "no value is described"),
    "a wide empty array": (["array", "uint8", "|", 0, [1 << 40, 1 << 40, 0]], [], "no value is described"),
    "a size of very many digits": (["array", "uint8", "|", 0, [10**4000] * 3], [B], "no value is described"),
    "strides behind the end": (["tensor", "uint8", [2, 12], [13, 1]], [B], "24 bytes came where 25 are due"),
    "strides before the end": (["tensor", "uint8", [2, 12], [11, 1]], [B], "24 bytes came where 23 are due"),
    "a larger array": (["array", "float64", "<", 0, [2, 2]], [B], "24 bytes came where 32 are due"),
    "a smaller array": (["array", "float64", "<", 1, [2]], [B], "24 bytes came where 16 are due"),
    "longer bytes": (["bytes", 25], [B], "24 bytes came where 25 are due"),
    "bytes of no number": (["bytes", "24"], [B], "24 bytes came where '24' are due"),
    "a text of no UTF-8": (["text", 1], [memoryview(b"\xff")], "not UTF-8"),
    "a buffer missing": (["list", ["bytes", 24], ["bytes", 24]], [B], "more buffers than the 1"),
    "a buffer left over": (["bytes", 24], [B, B], "2 buffers came for a value that has 1"),
    "again before the first": (["again", 0], [], "no tensor or array met before"),
    "again from the end": (["list", ["tensor", "uint8", [24], [1]], ["again", -1]], [B], "met before"),
    "again of no number": (["list", ["tensor", "uint8", [24], [1]], ["again", "0"]], [B], "met before"),
    "65 levels": (json.loads('["list",' * 64 + "1" + "]" * 64), [], "more than 64 deep"),
    "a million and one parts": (["list", *range(1_000_000)], [], "more than 1000000 parts"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_value_is_refused_with_a_reason(kind: str) -> None:
    said, buffers, reason = BAD[kind]
    with pytest.raises(BadValue, match=reason):
        decode(json.dumps(said).encode(), buffers)


@pytest.mark.parametrize(
    "skeleton",
    [
        b"",
        b"[",
        b"[" * 200_000,
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"\xff",
        "[]".encode("utf-16"),
        b"9" * 5000,
        b"1 2",
    ],
)
def test_what_is_no_json_of_ours_is_refused(skeleton: bytes) -> None:
    with pytest.raises(BadValue, match=r"not JSON|no value is described"):
        decode(skeleton, [])


def test_a_long_description_is_neither_made_nor_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MAX_SKELETON", 10)
    assert there_and_back("12345678") == "12345678"
    with pytest.raises(NotPortable, match="11 bytes; the limit is 10"):
        encode("123456789")
    with pytest.raises(BadValue, match="11 bytes; the limit is 10"):
        decode(b'"123456789"', [])
