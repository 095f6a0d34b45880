"""Leave no trace: what a profile runs is rolled back, also when it raises.

Objects with `state_dict` and `load_state_dict` are restored by these. A module's state has neither gradients, nor buffers that are not
saved, nor whether it trains: they are restored beside it. So are the generators of `random`, NumPy, torch and CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch

from penstock.dataset.seeding import generators_kept
from penstock.errors import ConfigError


def check_keep(objects: Sequence[Any]) -> None:
    for one in objects:
        if not isinstance(one, torch.Generator) and not (
            hasattr(one, "state_dict") and hasattr(one, "load_state_dict")
        ):
            raise ConfigError(
                f"keep= takes what has state_dict and load_state_dict, such as the model and the optimizer, got {type(one).__name__}"
            )


@contextmanager
def kept(objects: Sequence[Any]) -> Iterator[None]:
    """Restore the objects and all generators afterwards."""
    check_keep(objects)
    restores = [restore_of(one) for one in objects]
    cuda = cuda_states()
    with generators_kept():
        try:
            yield
        finally:
            for restore in restores:
                restore()
            if cuda:
                torch.cuda.set_rng_state_all(cuda)


def cuda_states() -> list[torch.Tensor]:
    if not torch.cuda.is_available():
        return []
    torch.cuda.init()  # type: ignore[no-untyped-call] # what is seeded when CUDA starts would otherwise be drawn from before it could be noted
    return torch.cuda.get_rng_state_all()


def restore_of(one: Any) -> Callable[[], object]:
    if isinstance(one, torch.Generator):
        return partial(one.set_state, one.get_state())
    saved = deepcopy(one.state_dict())
    beside = beside_state(one) if isinstance(one, torch.nn.Module) else None

    def restore() -> None:
        one.load_state_dict(saved)
        if beside is not None:
            beside()

    return restore


def beside_state(module: torch.nn.Module) -> Callable[[], None]:
    """Return what restores the rest of a module."""
    modes = [(part, part.training) for part in module.modules()]
    grads = [(p, p.grad, None if p.grad is None else p.grad.detach().clone()) for p in module.parameters()]
    buffers = [
        (part, name, buffer, None if buffer is None else buffer.detach().clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
    ]

    def restore() -> None:
        for part, mode in modes:
            part.training = mode
        with torch.no_grad():
            for parameter, grad, values in grads:
                parameter.grad = grad if grad is None or values is None else grad.copy_(values)
            for part, name, buffer, values in buffers:
                part._buffers[name] = buffer if buffer is None or values is None else buffer.copy_(values)

    return restore
