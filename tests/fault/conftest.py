"""Settings of the fault tests: a deadline for each, programs that can be started cheaply, and none left running."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from tests.fault.programs import Zygote

DEADLINE_S = 60


class TestHung(BaseException):
    """Not an `Exception`: code that goes on after errors must not swallow its own deadline."""


def _give_up(signum: int, frame: FrameType | None) -> None:
    raise TestHung(f"the test did not end within {DEADLINE_S} s")


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


@pytest.fixture(scope="session")
def _zygote() -> Iterator[Zygote]:
    zygote = Zygote("tests.fault.jobs", "tests.lending_jobs")
    yield zygote
    zygote.close()


@pytest.fixture(scope="session")
def bare() -> Iterator[Zygote]:
    """Starts programs that have imported everything but penstock."""
    zygote = Zygote("torch", "torch.utils.data", "numpy", "pytest", "psutil", "hypothesis")
    yield zygote
    zygote.close()


@pytest.fixture
def programs(_zygote: Zygote) -> Iterator[Zygote]:
    """Starts programs; what is left of them is ended with the test."""
    yield _zygote
    _zygote.end_programs()
