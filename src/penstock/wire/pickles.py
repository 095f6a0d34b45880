"""The one place that pickles: values between processes of one loader, over private inherited sockets and memory.

Tensors and arrays are never pickled here. `Packer` puts their bytes into the arena and pickles only a reference, so a
batch of any structure travels as a small skeleton and raw memory. Anything but plain memory (CUDA, sparse, quantised
tensors) goes through torch's own reductions, as in torch's loader.
"""

from __future__ import annotations

import io
import marshal
import pickle
from bisect import bisect_right
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.errors import MissingExtra
from penstock.wire.extents import LANE_ALIGN, aligned
from penstock.wire.frames import DEALT, INTS, KEY_BYTES, OBJECTS, join_keys, split_keys

PicklingError = pickle.PicklingError


class Ref(NamedTuple):
    """Location of a tensor's or array's bytes."""

    array: bool
    offset: int
    """From the start of the result, or of the arena if `absolute`."""
    absolute: bool
    nbytes: int
    dtype: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Packer(ForkingPickler):
    """Pickles a structure; tensors and arrays become `Ref`s and are remembered in `chunks`.

    A tensor inside a range of `lent` (from, to; sorted) is not copied: the structure refers to it in place.
    """

    def __init__(self, file: io.BytesIO, arena_start: int, lent: Sequence[tuple[int, int]]) -> None:
        super().__init__(file, 5)
        self._arena_start, self._lent = arena_start, lent
        self.chunks: list[tuple[int, memoryview]] = []
        self.nbytes = 0
        self.refers = False
        self._met: dict[int, tuple[Any, Ref]] = {}
        """Tensors and arrays so far: one met twice stays one on the other side too."""

    def persistent_id(self, obj: Any) -> Ref | None:
        kind = type(obj)
        if kind is not torch.Tensor and kind is not np.ndarray:
            return None
        if found := self._met.get(id(obj)):
            return found[1]
        if kind is torch.Tensor:
            ref = self._tensor(obj) if is_plain(obj) else None
        else:
            ref = self._array(obj) if obj.dtype.kind in "biufc" else None
        if ref is not None:
            self._met[id(obj)] = obj, ref
        return ref

    def _array(self, array: np.ndarray[Any, Any]) -> Ref:
        """Pack by rows, or by columns if it is column-major."""
        columns = array.flags.f_contiguous and not array.flags.c_contiguous
        rows = np.ascontiguousarray(array.T if columns else array)
        return self._put(True, rows.nbytes, raw(rows), array.dtype.str, array.shape, (int(columns),))

    def _tensor(self, tensor: torch.Tensor) -> Ref:
        """Pack with its strides, unless it spans much more memory than its elements need (slices); then copy it compactly."""
        if span_of(tensor) > 2 * max(1, tensor.numel()):
            tensor = tensor.contiguous()
        span, shape, stride = span_of(tensor), tuple(tensor.shape), tuple(tensor.stride())
        nbytes = span * tensor.element_size()
        start = tensor.data_ptr() - self._arena_start
        if nbytes and self._is_lent(start, start + nbytes):
            self.refers = True
            return Ref(False, start, True, nbytes, tensor.dtype, shape, stride)
        flat = torch.as_strided(tensor, (span,), (1,)).view(torch.uint8) if nbytes else None
        data = flat.numpy().data if flat is not None else None
        return self._put(False, nbytes, data, tensor.dtype, shape, stride)

    def _is_lent(self, start: int, end: int) -> bool:
        at = bisect_right(self._lent, start, key=itemgetter(0)) - 1
        return at >= 0 and end <= self._lent[at][1]

    def _put(
        self,
        array: bool,
        nbytes: int,
        data: memoryview | None,
        dtype: Any,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
    ) -> Ref:
        ref = Ref(array, self.nbytes, False, nbytes, dtype, shape, stride)
        if data is not None:
            self.chunks.append((self.nbytes, data))
            self.nbytes += aligned(nbytes, LANE_ALIGN)
        return ref


class Unpacker(pickle.Unpickler):
    """Rebuilds a structure; `load` turns references into memory."""

    def __init__(self, file: io.BytesIO, load: Callable[[Ref], Any]) -> None:
        super().__init__(file)
        self.persistent_load = load  # type: ignore[method-assign]


class Packed:
    """A structure ready to be written into an extent: head, skeleton, then the raw bytes."""

    HEAD = 16

    def __init__(self, obj: object, arena_start: int = 0, lent: Sequence[tuple[int, int]] = ()) -> None:
        file = io.BytesIO()
        packer = Packer(file, arena_start, lent)
        packer.dump(obj)
        self.refers = packer.refers
        self._skeleton = file.getbuffer()
        self._chunks = packer.chunks
        self._body = aligned(self.HEAD + len(self._skeleton), LANE_ALIGN)
        self.nbytes = self._body + packer.nbytes

    def write(self, view: memoryview) -> None:
        view[: self.HEAD] = len(self._skeleton).to_bytes(8, "little") + self._body.to_bytes(8, "little")
        view[self.HEAD : self.HEAD + len(self._skeleton)] = self._skeleton
        for at, data in self._chunks:
            view[self._body + at : self._body + at + len(data)] = data


def unpack(view: memoryview, offset: int, load: Callable[[Ref], Any]) -> Any:
    """Return the structure at `offset` of the arena; `load` gets references with absolute offsets."""
    skeleton = int.from_bytes(view[offset : offset + 8], "little")
    body = offset + int.from_bytes(view[offset + 8 : offset + 16], "little")
    data = io.BytesIO(view[offset + Packed.HEAD : offset + Packed.HEAD + skeleton])

    met: dict[int, tuple[Ref, Any]] = {}

    def load_absolute(ref: Ref) -> Any:
        if id(ref) not in met:
            value = load(ref if ref.absolute else ref._replace(offset=body + ref.offset, absolute=True))
            met[id(ref)] = ref, value
        return met[id(ref)][1]

    return Unpacker(data, load_absolute).load()


def rebuild(ref: Ref, view: memoryview) -> torch.Tensor | np.ndarray[Any, Any]:
    """Return the tensor or array of `ref` over `view`, which holds exactly its bytes and lives as long as the result."""
    if ref.array:
        if not ref.nbytes:
            return np.empty(ref.shape, ref.dtype)
        # NumPy's own `frombuffer` views the view and drops this one; a tensor keeps it.
        flat: np.ndarray[Any, Any] = torch.frombuffer(view, dtype=torch.uint8).numpy().view(ref.dtype)
        return flat.reshape(ref.shape[::-1]).T if ref.stride[0] else flat.reshape(ref.shape)
    if not ref.nbytes:
        return torch.empty_strided(ref.shape, ref.stride, dtype=ref.dtype)
    return torch.frombuffer(view, dtype=ref.dtype).as_strided(ref.shape, ref.stride)


def span_of(tensor: torch.Tensor) -> int:
    """Return the elements from a tensor's first to its last in memory, inclusive."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is ordinary CPU memory that can be copied byte by byte."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


SCALARS = (int, float, bool, str, bytes, complex, type(None))


def is_portable(obj: Any) -> bool:
    """Whether it consists of exact plain types only, so that another process gets an equal copy without running any code."""
    kind = type(obj)
    if kind is torch.Tensor:
        return is_plain(obj)
    if kind in SCALARS or isinstance(obj, (np.number, np.bool_)):
        return True
    if kind is np.ndarray:
        return obj.dtype.kind in "biufc"
    if kind is dict:
        return all(is_portable(key) and is_portable(value) for key, value in obj.items())
    if kind in (list, tuple):
        return all(map(is_portable, obj))
    return False


def raw(array: np.ndarray[Any, Any]) -> memoryview | None:
    return array.reshape(-1).view(np.uint8).data if array.nbytes else None


def dumps(obj: object) -> bytes:
    return bytes(ForkingPickler.dumps(obj, 5))


def loads(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - from our own processes, over a private socket


def dumps_plain(obj: Any) -> bytes:
    """Serialise numbers, texts, bytes, tuples and lists only: ten times as fast."""
    return marshal.dumps(obj)


def loads_plain(data: bytes) -> Any:
    return marshal.loads(data)  # noqa: S302 - from our own processes, over private memory


def dumps_local(obj: object) -> bytes:
    """Pickle without multiprocessing's additions for tensors, connections and the like."""
    return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)


def dumps_by_value(obj: object) -> bytes:
    """Pickle for another machine: functions and classes of the program itself by value. Read by `loads`, there, from whoever has the key."""
    try:
        import cloudpickle  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise MissingExtra("remote workers need cloudpickle: pip install 'penstock[ray]'") from None
    data: bytes = cloudpickle.dumps(obj, 5)
    return data


def pack_keys(keys: list[Any], dealt: list[int] | None = None) -> tuple[int, bytes]:
    """Pack sampler keys: plain ints as an array, anything else pickled one by one (tasks get slices). `dealt`: positions of our own order's
    keys, if they are not equidistant."""
    if dealt is not None:
        return DEALT, np.array([keys, dealt], dtype=np.int64).T.tobytes()
    if all(type(key) is int for key in keys):
        try:
            return INTS, np.array(keys, dtype=np.int64).tobytes()
        except OverflowError:
            pass
    # By value: torch's reductions hand a tensor over only once, but a task may be reissued.
    return OBJECTS, join_keys([pickle.dumps(key, 5) for key in keys])


def unpack_keys(kind: int, data: bytes) -> list[Any]:
    if kind in KEY_BYTES:
        keys: list[Any] = np.frombuffer(data, dtype=np.int64)[:: KEY_BYTES[kind] // 8].tolist()
        return keys
    return [loads(blob) for blob in split_keys(data)]


def unpack_positions(kind: int, data: bytes) -> list[int] | None:
    """Return the positions that travel with the keys, if they do."""
    return np.frombuffer(data, dtype=np.int64)[1::2].tolist() if kind == DEALT else None
