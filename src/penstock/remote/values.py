"""Values between machines: a checked description (the skeleton, JSON) and raw bytes (the buffers). Nothing is pickled.

Rule 1: what arrives is what was sent: types, bits, strides, and whether two places hold one tensor. Packing is that of `wire.pickles`.
Rule 2: `decode` makes only the types named here, whatever the skeleton says. Each part that has bytes takes the next buffer, of
        exactly its length, and none is left over.
Rule 3: `encode` refuses what `decode` would.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from penstock.wire.dtypes import NUMPY, NUMPY_NAMES, TORCH, TORCH_NAMES
from penstock.wire.layout_text import shown
from penstock.wire.pickles import Ref, is_plain, raw, rebuild, span_of

MAX_SKELETON = 1 << 26
MAX_DEPTH = 64
MAX_NODES = 1_000_000
MAX_NDIM = 8
MAX_EXTENT = 1 << 40
"""Of a size, a stride, and the bytes of a tensor if it were compact."""
LONG_TEXT = 256
"""Longer texts go to a buffer."""
INT64 = 1 << 63
SURROGATE = re.compile(r"[\ud800-\udfff]")

ORDERS = ("<", ">", "|")
"""Of bytes in a number; the last: it has only one."""


class NotPortable(TypeError):
    """A value cannot be sent to another machine without running code there."""


class BadValue(ValueError):
    """What arrived describes no value."""


def encode(value: Any) -> tuple[bytes, list[memoryview]]:
    """Return a value's skeleton and the memory it refers to: leave the value alone until that is sent. Raise NotPortable."""
    writer = _ValueWriter()
    said = writer.node(value, 1)
    skeleton = json.dumps(said, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(skeleton) > MAX_SKELETON:
        raise NotPortable(f"a value's description has {len(skeleton)} bytes; the limit is {MAX_SKELETON}")
    return skeleton, writer.buffers


def decode(skeleton: bytes, buffers: Sequence[memoryview]) -> Any:
    """Return the value, or raise BadValue. Tensors and arrays lie in the buffers; one that cannot be written to is copied."""
    if len(skeleton) > MAX_SKELETON:  # guard: value-length
        raise BadValue(f"a value's description has {len(skeleton)} bytes; the limit is {MAX_SKELETON}")
    try:
        said = json.loads(skeleton.decode("ascii"))
    except (ValueError, RecursionError):
        raise BadValue("a value's description is not JSON") from None
    reader = _ValueReader(buffers)
    value = reader.node(said, 1)
    reader.end()
    return value


def extent(shape: Sequence[int], stride: Sequence[int] | None, itemsize: int) -> int | None:
    """Return the bytes from the first element to the last; None if the numbers are out of bounds. No strides: it is compact."""
    if len(shape) > MAX_NDIM:  # guard: value-ndim
        return None
    if stride is not None and len(stride) != len(shape):  # guard: value-strides
        return None
    total, span = itemsize, 1
    for size, step in zip(shape, stride or [0] * len(shape), strict=True):
        if not (0 <= size <= MAX_EXTENT and 0 <= step <= MAX_EXTENT):  # guard: value-shape
            return None
        # Sizes beside an empty dimension count too: libraries multiply them, and not all look for overflow.
        total *= size or 1
        span += (size - 1) * step
        if total > MAX_EXTENT:  # guard: value-product
            return None
    if not all(shape):
        return 0
    return total if stride is None else span * itemsize


# ---- writing


class _ValueWriter:
    def __init__(self) -> None:
        self.buffers: list[memoryview] = []
        self._nodes = 0
        self._met: dict[int, tuple[Any, int]] = {}
        """Tensors and arrays so far. They are held, so that no other gets the id of one."""

    def node(self, value: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise NotPortable(
                f"a value has more than {MAX_NODES} parts, or is nested more than {MAX_DEPTH} deep"
            )
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -INT64 <= value < INT64 else ["int", hex(value)]
        if kind is float:
            return value if math.isfinite(value) else ["float", struct.pack("<d", value).hex()]
        if kind is complex:
            return ["complex", struct.pack("<dd", value.real, value.imag).hex()]
        if kind is str:
            return self._text(value)
        if kind is bytes:
            return ["bytes", self._put(memoryview(value))]
        if kind in (list, tuple):
            return [kind.__name__, *(self.node(item, depth + 1) for item in value)]
        if kind is dict:
            return ["dict", *self._items(value, depth + 1)]
        if kind in NUMPY_NAMES:
            dtype = np.dtype(kind).newbyteorder("<")
            return ["number", NUMPY_NAMES[kind], np.asarray(value, dtype).tobytes().hex()]
        if kind is torch.Tensor or kind is np.ndarray:
            return self._shared(value)
        raise NotPortable(f"a {kind.__module__}.{kind.__qualname__} cannot be sent to another machine")

    def _items(self, value: dict[Any, Any], depth: int) -> list[Any]:
        said = []
        for key, item in value.items():
            said += [self.node(key, depth), self.node(item, depth)]
            if not _is_key(key):
                raise NotPortable(f"a {type(key).__qualname__} as a key cannot be sent to another machine")
        return said

    def _text(self, value: str) -> Any:
        # JSON joins two halves of a surrogate pair.
        if len(value) <= LONG_TEXT and not SURROGATE.search(value):
            return value
        return ["text", self._put(memoryview(value.encode("utf-8", "surrogatepass")))]

    def _put(self, data: memoryview | None) -> int:
        """Append a buffer unless it is empty; return its length."""
        if data is None or not data.nbytes:
            return 0
        self.buffers.append(data)
        return data.nbytes

    def _shared(self, value: Any) -> list[Any]:
        if found := self._met.get(id(value)):
            return ["again", found[1]]
        said = self._tensor(value) if type(value) is torch.Tensor else self._array(value)
        self._met[id(value)] = value, len(self._met)
        return said

    def _tensor(self, tensor: torch.Tensor) -> list[Any]:
        """Describe it with its strides; one that spans much more memory than it needs (a slice) is copied compactly."""
        name = TORCH_NAMES.get(tensor.dtype)
        if name is None or not is_plain(tensor):
            raise NotPortable(
                "a tensor that is more than numbers in memory cannot be sent to another machine"
            )
        if span_of(tensor) > 2 * max(1, tensor.numel()):
            tensor = tensor.contiguous()
        shape, stride = list(tensor.shape), list(tensor.stride())
        nbytes = extent(shape, stride, tensor.element_size())
        if nbytes is None:
            raise NotPortable(
                f"a tensor of shape {shape} and strides {stride} cannot be sent to another machine"
            )
        if nbytes:
            span = nbytes // tensor.element_size()
            self._put(torch.as_strided(tensor, (span,), (1,)).view(torch.uint8).numpy().data)
        return ["tensor", name, shape, stride]

    def _array(self, array: np.ndarray[Any, Any]) -> list[Any]:
        """Describe it by rows, or by columns if it is column-major."""
        name, shape = NUMPY_NAMES.get(array.dtype.type), list(array.shape)
        if name is None or extent(shape, None, array.itemsize) is None:
            raise NotPortable(f"an array of {array.dtype} of shape {shape} cannot be sent to another machine")
        columns = array.flags.f_contiguous and not array.flags.c_contiguous
        self._put(raw(np.ascontiguousarray(array.T if columns else array)))
        return ["array", name, array.dtype.str[0], int(columns), shape]


def _is_key(key: Any) -> bool:
    """Whether a dictionary may have it as a key on the other side too: its hash and its equality run no code of others."""
    kind = type(key)
    if kind is tuple:
        return all(map(_is_key, key))
    return key is None or kind in (bool, int, float, complex, str, bytes) or kind in NUMPY_NAMES


# ---- reading


class _ValueReader:
    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._buffers = buffers
        self._taken = 0
        self._nodes = 0
        self._met: list[Any] = []
        self._makers: dict[str, Callable[..., Any]] = {
            "int": self._int, "float": self._float, "complex": self._complex, "number": self._number,
            "text": self._text, "bytes": self._bytes, "tensor": self._tensor, "array": self._array, "again": self._again,
        }  # fmt: skip

    def end(self) -> None:
        if self._taken != len(self._buffers):  # guard: value-buffers-left
            raise BadValue(f"{len(self._buffers)} buffers came for a value that has {self._taken}")

    def node(self, said: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:  # guard: value-nodes
            raise BadValue(f"a value has more than {MAX_NODES} parts")
        if depth > MAX_DEPTH:  # guard: value-depth
            raise BadValue(f"a value is nested more than {MAX_DEPTH} deep")
        kind = type(said)
        if said is None or kind in (bool, int, str):
            return said
        if kind is float and math.isfinite(said):
            return said
        match said:
            case ["list", *items]:
                return [self.node(item, depth + 1) for item in items]
            case ["tuple", *items]:
                return tuple([self.node(item, depth + 1) for item in items])
            case ["dict", *items] if len(items) % 2 == 0:
                return self._dict(items, depth + 1)
            case [str(name), *parts] if name in self._makers:
                try:
                    return self._makers[name](*parts)
                except TypeError:  # parts too many or too few
                    raise wrong(said) from None
        raise wrong(said)

    def _dict(self, items: list[Any], depth: int) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for said_key, said_item in zip(items[::2], items[1::2], strict=True):
            key = self.node(said_key, depth)
            if not _is_key(key):  # guard: value-key-type
                raise BadValue(f"a {type(key).__name__} is no key")
            made[key] = self.node(said_item, depth)
        if len(made) != len(items) // 2:  # guard: value-keys
            raise BadValue("a dictionary has a key twice")
        return made

    def _take(self, nbytes: Any) -> memoryview:
        if self._taken >= len(self._buffers):
            raise BadValue(f"a value has more buffers than the {len(self._buffers)} that came")
        view = self._buffers[self._taken]
        self._taken += 1
        if type(nbytes) is not int or view.nbytes != nbytes:  # guard: value-buffer-length
            raise BadValue(f"a buffer of {view.nbytes} bytes came where {shown(nbytes)} are due")
        return view

    def _bytes(self, nbytes: Any) -> bytes:
        return b"" if nbytes == 0 else bytes(self._take(nbytes))

    def _text(self, nbytes: Any) -> str:
        try:
            return self._bytes(nbytes).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise BadValue("a text is not UTF-8") from None

    def _int(self, said: Any) -> int:
        try:
            return int(said, 16)  # unlike decimal digits, in linear time
        except ValueError:
            raise wrong(said) from None

    def _float(self, said: Any) -> float:
        number: float = struct.unpack("<d", unhexed(said, 8))[0]
        return number

    def _complex(self, said: Any) -> complex:
        return complex(*struct.unpack("<dd", unhexed(said, 16)))

    def _number(self, name: Any, said: Any) -> Any:
        kind = named(name, NUMPY)
        dtype = np.dtype(kind)
        return np.frombuffer(unhexed(said, dtype.itemsize), dtype.newbyteorder("<")).astype(dtype)[0]

    def _again(self, number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(self._met):  # guard: value-again
            raise BadValue(f"{shown(number)} is no tensor or array met before")
        return self._met[number]

    def _tensor(self, name: Any, shape: Any, stride: Any) -> torch.Tensor:
        dtype = named(name, TORCH)
        ref = Ref(False, 0, True, 0, dtype, whole_numbers(shape), whole_numbers(stride))
        made: torch.Tensor = self._made(ref, dtype.itemsize, ref.stride)
        return made

    def _array(self, name: Any, order: Any, columns: Any, shape: Any) -> np.ndarray[Any, Any]:
        if order not in ORDERS or columns not in (0, 1):
            raise wrong([name, order, columns])
        dtype = np.dtype(named(name, NUMPY)).newbyteorder("=" if order == "|" else order)
        ref = Ref(True, 0, True, 0, dtype, whole_numbers(shape), (int(columns),))
        made: np.ndarray[Any, Any] = self._made(ref, dtype.itemsize, None)
        return made

    def _made(self, ref: Ref, itemsize: int, stride: Sequence[int] | None) -> Any:
        nbytes = extent(ref.shape, stride, itemsize)
        if nbytes is None:
            raise wrong([ref.shape, stride])
        view = writable(self._take(nbytes), itemsize) if nbytes else memoryview(b"")
        self._met.append(rebuild(ref._replace(nbytes=nbytes), view))
        return self._met[-1]


def wrong(said: Any) -> BadValue:
    return BadValue(f"no value is described like this: {shown(said)}")


def named(name: Any, table: dict[str, Any]) -> Any:
    if type(name) is not str or name not in table:
        raise BadValue(f"{shown(name)} is not a name that is known here")
    return table[name]


def whole_numbers(said: Any) -> tuple[int, ...]:
    if type(said) is not list or not all(type(number) is int for number in said):
        raise BadValue(f"sizes and strides are whole numbers, not {shown(said)}")
    return tuple(said)


def unhexed(said: Any, nbytes: int) -> bytes:
    try:
        data = bytes.fromhex(said)
    except (TypeError, ValueError):
        raise wrong(said) from None
    if len(data) != nbytes:
        raise wrong(said)
    return data


def writable(view: memoryview, itemsize: int) -> memoryview:
    """Return the view, or a copy if it is read-only or lies where numbers of this size do not."""
    if view.readonly or torch.frombuffer(view, dtype=torch.uint8).data_ptr() % itemsize:
        return memoryview(bytearray(view))
    return view
