"""Decode JPEG files on the device with nvJPEG: by the card's engines if it has them, else by kernels.

We call the library directly: torchvision has one decoder per process, locked while it works. Several of ours run at once, each on its own stream,
and so keep the engines busy beside training.

Rule 1: a call waits for nothing but the library, and releases the GIL meanwhile.
Rule 2: the library's device memory is torch's, on the decoder's stream, and counted. Beyond its budget an allocation is refused and the call
        fails; the caller retries with fewer files.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.errors import MissingExtra

DEFAULT, KERNELS, ENGINES = 0, 2, 3
"""Backends (`nvjpegBackend_t`): the library's choice without engines; all in kernels; the card's JPEG engines."""
NO_PIPELINE = 1 << 0
"""One stream per engine instead of two: fewer of them share a driver queue with training (`gpu.queues`)."""
PLANES = 3
"""Output is planar RGB (`nvjpegOutputFormat_t`)."""
MOST_COMPONENTS = 4
LEFT_BYTES = 256 << 20
"""Device memory that preparation leaves to others."""
STATUS = {
    1: "not initialised",
    2: "invalid parameter",
    3: "bad JPEG",
    4: "JPEG not supported",
    5: "no memory",
    6: "execution failed",
    7: "not on this architecture",
    8: "internal error",
    9: "not implemented",
    10: "incomplete bitstream",
}


class DecodeError(RuntimeError):
    """The library failed to decode these files; it does not say which."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call}: {STATUS.get(status, f'status {status}')}")
        self.status = status


class File(NamedTuple):
    """An encoded image in host memory, and the device address for its planes, without gaps."""

    address: int
    size: int
    target: int
    height: int
    width: int


_DevMalloc = ctypes.CFUNCTYPE(c_int, POINTER(c_void_p), c_size_t)
_DevFree = ctypes.CFUNCTYPE(c_int, c_void_p)


class _DevAllocator(Structure):
    _fields_ = (("malloc", _DevMalloc), ("free", _DevFree))


class Decoder:
    """Decodes batches of files on its own stream; for one thread at a time."""

    def __init__(
        self,
        stream: torch.cuda.Stream,
        *,
        most: int,
        backend: int = ENGINES,
        flags: int = 0,
        output: int = PLANES,
        budget_bytes: int = 256 << 20,
    ) -> None:
        self._lib = library()
        self._stream, self._budget, self._output = stream, budget_bytes, output
        self._blocks: dict[int, int] = {}
        self._allocator = _DevAllocator(_DevMalloc(self._malloc), _DevFree(self._free))
        self._handle, self._state = c_void_p(), c_void_p()
        self._count = 0
        self._data, self._sizes = np.zeros(most, np.uint64), np.zeros(most, np.uint64)
        self._images = np.zeros((most, 2, MOST_COMPONENTS), np.uint64)
        """For each file (`nvjpegImage_t`): addresses of its channels, and bytes of a row."""
        self._call(
            "nvjpegCreateEx",
            c_int(backend),
            ctypes.byref(self._allocator),
            None,
            c_uint(flags),
            ctypes.byref(self._handle),
        )
        try:
            self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))
        except DecodeError:
            self.close()
            raise

    @property
    def held_bytes(self) -> int:
        """Device memory the library holds now."""
        return sum(self._blocks.values())

    def decode(self, files: Sequence[File] | NDArray[np.int64]) -> None:
        """Write the planes of all files, in stream order; DecodeError if any cannot be decoded here. `files`: rows as in File."""
        if len(files) != self._count:
            self._call(
                "nvjpegDecodeBatchedInitialize", self._handle, self._state, len(files), 1, self._output
            )
            self._count = len(files)
        address, size, target, height, width = np.asarray(files, np.uint64).T
        count, plane = len(files), height * width
        self._data[:count], self._sizes[:count] = address, size
        for channel in range(3):
            self._images[:count, 0, channel] = target + np.uint64(channel) * plane
            self._images[:count, 1, channel] = width
        try:
            self._call(
                "nvjpegDecodeBatched",
                self._handle,
                self._state,
                *(c_void_p(array.ctypes.data) for array in (self._data, self._sizes, self._images)),
                c_void_p(self._stream.cuda_stream),
            )
        except DecodeError:
            self._count = 0  # do not reuse the state of a failed batch
            raise

    def close(self) -> None:
        if self._handle.value:
            if self._state.value:
                self._lib.nvjpegJpegStateDestroy(self._state)
            self._lib.nvjpegDestroy(self._handle)
            self._handle = c_void_p()

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._lib, name)(*args)
        if status:
            raise DecodeError(name, status)

    def _malloc(self, found: Any, size: int) -> int:
        try:
            if (
                self.held_bytes + size > self._budget
                or torch.cuda.mem_get_info(self._stream.device)[0] < size + LEFT_BYTES
            ):
                return 2  # cudaErrorMemoryAllocation
            address = torch.cuda.caching_allocator_alloc(size, self._stream.device, self._stream)
        except Exception:  # noqa: BLE001 - an error that is raised in a callback is lost; the library makes a status of this
            return 2
        found[0] = address
        self._blocks[address] = size
        return 0

    def _free(self, address: int) -> int:
        if self._blocks.pop(address, None) is not None:
            torch.cuda.caching_allocator_delete(address)  # type: ignore[no-untyped-call]
        return 0


@cache
def library() -> Any:
    """Load the library from whichever package brought it; MissingExtra if none did."""
    for candidate in candidates():
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    raise MissingExtra(
        "preparing samples on the GPU needs nvJPEG: pip install 'penstock[gpu]' (or nvidia-nvjpeg for your CUDA version)"
    )


def candidates() -> list[str]:
    """Return where the library may be: NVIDIA's package, torchvision's wheel, the system."""
    major = (torch.version.cuda or "13").partition(".")[0]
    found: list[Path] = []
    for package, pattern in (
        ("nvidia", "**/libnvjpeg.so*"),
        ("torchvision", "../torchvision.libs/libnvjpeg*"),
    ):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            found += sorted(Path(place).glob(pattern))
    return [*(str(path) for path in found if f".so.{major}" in path.name), f"libnvjpeg.so.{major}"]
