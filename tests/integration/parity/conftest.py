"""Settings of the parity suite: a deadline for each case, and leaks charged to our loader alone."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

DEADLINE_S = 60


class CaseHung(BaseException):
    """Not an `Exception`: a case that goes on after errors must not swallow its own deadline."""


def _give_up(signum: int, frame: FrameType | None) -> None:
    raise CaseHung(f"the case did not end within {DEADLINE_S} s")


@pytest.fixture(scope="session", autouse=True)
def _cheap_collections() -> Iterator[None]:
    """Each case ends with a collection; the hundred thousands of objects of torch's modules need not be visited in it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _torch_is_not_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an exception torch's iterator dies in a cycle with its queues and waits this long for each worker in vain."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> None:
    """In the place of the rule for all tests: torch's loader, which runs in every case, keeps threads and descriptors."""


@pytest.fixture(autouse=True)
def _deadline(request: pytest.FixtureRequest) -> Iterator[None]:
    """A loader that waits for ever is a failure, not a hang; pytest-timeout does this where it is installed."""
    if request.config.pluginmanager.hasplugin("timeout"):
        yield
        return
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S, 5)  # and again, should the clean-up hang too
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
