"""Keyed randomness: draws depend on the sample, never on who prepares it.

Before each sample, the global generators of `random`, NumPy and torch are seeded from its seed. Our ops do not draw from
those: `call_seed` keys each call of an op by (sample seed, op, number of the call).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.random  # NumPy loads it lazily: better once here than in every forked worker
import torch

from penstock.plan.seeds import Company, op_seed

MASK63 = (1 << 63) - 1
"""torch's seeds are signed: `torch.tensor(torch.initial_seed())` must fit. Its CPU generator uses the low 32 bits: same draws."""

_sample_seed: int | None = None
_company: Company | None = None
_calls: dict[str, int] = {}


def seed_sample(seed: int, company: Company | None = None) -> None:
    """Set the seed for our own ops, which draw from this alone."""
    global _sample_seed, _company
    _sample_seed, _company = seed, company
    if _calls:
        _calls.clear()


def seed_all(seed: int, company: Company | None = None) -> None:
    """Seed the three global generators too, for user code. Takes 10 µs, thrice that with cold caches; `torch.manual_seed`
    would take 170 by visiting every device."""
    seed_sample(seed, company)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed & MASK63)


def call_seed(op: str) -> int:
    """Return the seed of one call of `op` on the present sample; each call gets another one. Outside a loader, the
    program's own generator decides."""
    if _sample_seed is None:
        return int(torch.empty((), dtype=torch.int64).random_().item())
    call = _calls[op] = _calls.get(op, -1) + 1
    return op_seed(_sample_seed, op, call)


def company() -> Company | None:
    """Return the batch of the present sample; None outside a loader."""
    return _company


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the three global generators afterwards."""
    global _sample_seed, _company
    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.default_generator.set_state(states[2])
        _sample_seed = _company = None
