"""Rules for all tests: what they may leave behind, how long they may take, where they may run.

Tests under `integration/` and `fault/` start processes. Each of them is checked for leaks afterwards and has `LIMIT_S`
seconds, unless it states another limit with `@pytest.mark.timeout`. Of a test that failed only the processes are ended: its
traceback keeps its objects alive, so a list of what they hold would say nothing.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.leaks import Snapshot, brand_this_process

HERE = Path(__file__).parent
STARTS_PROCESSES = (HERE / "integration", HERE / "fault")
FULL = os.environ.get("PENSTOCK_FULL") == "1"
SLOW = ("fault", "integration", "on_ray")
SLOWEST = (
    "fault/test_cache_guards.py",
    "fault/test_node_guards.py",
    "fault/test_reader_guards.py",
    "integration/test_digests.py",
    "on_ray/test_jobs.py",
    "fault/test_cache_in_jobs.py",
    "fault/test_guards.py",
    "contract/test_stateful_loader.py",
    "integration/test_remote_plans.py",
    "integration/test_demo.py",
    "integration/test_cli.py",
    "integration/test_wheel.py",
    "fault/test_peer_damage.py",
    "integration/test_without_libraries.py",
    "fault/test_peer_guards.py",
    "unit/test_kernels.py",
    "integration/test_lending.py",
    "fault/test_remote_guards.py",
    "fault/test_lending_faults.py",
    "integration/test_states_at_every_batch.py",
    "fault/test_disk_store_guards.py",
    "integration/test_examples_targets.py",
    "property/test_keeper_properties.py",
    "integration/test_offloading.py",
    "fault/test_disk_store_errors.py",
    "unit/test_reuse_on_device.py",
    "unit/test_too_many_workers.py",
)
"""Files that take half a minute and more, the longest first."""
LIMIT_S = 8 * 3600 if FULL else 300
"""Ten times what the longest takes alone: a busy machine is no failure, and a hang is one soon enough."""

settings.register_profile(
    "gate",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("gate")  # a busy machine is no failure

# Triton decides when it is loaded, by whichever test comes first, whether kernels run as Python: where there is no GPU they do.
if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# What one test decides about remote workers must not begin another one, nor be stored in the user's folder.
os.environ.setdefault("PENSTOCK_STORED_METRICS", "0")

# A node process outlives its last loader by two seconds, and any two loaders of a test would start one. Tests of lent cores say "1".
os.environ.setdefault("PENSTOCK_LENDING", "0")

# A shell has programs in the background ignore Ctrl-C, and theirs too. Tests send it to programs that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_failed = pytest.StashKey[bool]()


def _starts_processes(item: pytest.Item) -> bool:
    return any(item.path.is_relative_to(folder) for folder in STARTS_PROCESSES)


def pytest_configure() -> None:
    brand_this_process()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_turn)
    has_timeouts = config.pluginmanager.hasplugin("timeout")
    for item in items:
        if item.path.is_relative_to(HERE / "gpu"):
            item.add_marker(pytest.mark.gpu)
        if has_timeouts and _starts_processes(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


def _turn(item: pytest.Item) -> int:
    """Slow files come first, then slow folders: at the end one process would still be at a long file while the others have nothing to do."""
    path = item.path.relative_to(HERE)
    if path.as_posix() in SLOWEST:
        return SLOWEST.index(path.as_posix())
    return len(SLOWEST) + (path.parts[0] not in SLOW)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
    if item.get_closest_marker("interpreted") is not None and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels run on the GPU that is here: TRITON_INTERPRET=1 has them interpreted")


@pytest.fixture(scope="session", autouse=True)
def _cheap_collections() -> Iterator[None]:
    """The hundred thousands of objects of torch's modules need not be visited at every collection."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _seeds_end_with_their_test() -> Iterator[None]:
    """What is drawn outside loaders depends on whether a sample was seeded before."""
    yield
    seeding = sys.modules.get("penstock.dataset.seeding")
    if seeding is not None:
        seeding._sample_seed = seeding._company = None


@pytest.fixture
def cuda_seems_to_be_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of loaders with `device="cuda"` that bring nothing there: their constructor would refuse it."""
    monkeypatch.setattr("penstock.client.mover.missing", lambda _: "")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    if not _starts_processes(request.node):
        yield
        return
    before = Snapshot.take()
    yield
    if request.node.stash.get(_failed, False):
        before.kill_new_processes()
        return
    leaks = before.leaks()
    before.kill_new_processes()
    if leaks:
        pytest.fail("the test left behind:\n  " + "\n  ".join(leaks), pytrace=False)
