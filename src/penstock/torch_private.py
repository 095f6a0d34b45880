"""All uses of torch's private parts, in one place; `tests/unit/test_torch_private.py` pins the versions.

There is no public way to make `torch.utils.data.get_worker_info()` answer in a worker, to seed NumPy in workers as torch does, to re-raise a
user's exception by torch's rules (same type if its constructor allows), or to take a sample apart as torchvision's transforms do
(`torch.utils._pytree`, to which users and libraries add their own classes).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data import _utils
from torch.utils.data._utils.worker import WorkerInfo

__all__ = [
    "ExceptionWrapper",
    "enter_worker",
    "numpy_worker_seed",
    "private_collate",
    "tree_flatten",
    "tree_unflatten",
    "wrap_exception",
]


def enter_worker(worker: int, workers: int, seed: int, dataset: Any) -> None:
    """Make `get_worker_info()` answer as in torch's worker."""
    _utils.worker._worker_info = WorkerInfo(id=worker, num_workers=workers, seed=seed, dataset=dataset)


@contextmanager
def private_collate() -> Iterator[None]:
    """Make torch's collate use ordinary memory. In a worker it takes shared memory from /dev/shm, which may be tiny; our results are copied
    into the arena anyway."""
    held, _utils.worker._worker_info = _utils.worker._worker_info, None
    try:
        yield
    finally:
        _utils.worker._worker_info = held


def numpy_worker_seed(base_seed: int, worker: int) -> Any:
    return _utils.worker._generate_state(base_seed, worker)  # type: ignore[no-untyped-call]


def wrap_exception(where: str) -> ExceptionWrapper:
    """Wrap the exception being handled, with its traceback as text, to cross processes."""
    return ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
