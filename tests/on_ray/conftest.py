"""One Ray cluster of three hosts for the tests of each file (those of the gateway break theirs); skipped, with the reason, where it cannot be had.

Without PENSTOCK_FULL=1 only those in `SHORT` run, about a minute: batches from a real cluster, and two kinds of kill.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from tests.conftest import FULL
from tests.on_ray.cluster import Cluster, NoNamespaces
from tests.on_ray.driver import Driver

SHORT = (
    "test_a_loader_has_the_same_batches_from_workers_of_the_cluster[False]",
    "test_a_fault_costs_time_and_nothing_else[a_worker_is_killed]",
    "test_a_fault_costs_time_and_nothing_else[the_ferry_is_killed]",
)
RECONNECT_S = 12
"""Ray's own time without its head, instead of a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if not FULL and item.path.is_relative_to(here) and item.name not in SHORT:
            item.add_marker(pytest.mark.skip(reason="long: PENSTOCK_FULL=1 runs all tests on Ray"))


def missing() -> str:
    """Say what is not here."""
    try:
        metadata.version("ray")
    except metadata.PackageNotFoundError:
        return "Ray is not installed: pip install 'penstock[ray]'"
    tools = [tool for tool in ("ip", "tc", "nsenter", "unshare") if shutil.which(tool) is None]
    return f"these programs are missing: {', '.join(tools)}" if tools else ""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head with no CPUs to lend in h0, and two CPUs each in h1 and h2."""
    if lacking := missing():
        pytest.skip(lacking)
    try:
        hosts = Cluster(3, env={"RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_S)})
    except NoNamespaces as exc:
        pytest.skip(f"no namespaces to be had here: {exc}")
    with hosts:
        hosts.start_ray([0, 2, 2])
        yield hosts


@pytest.fixture
def drivers(cluster: Cluster) -> Iterator[list[Driver]]:
    """Gateways of one test; they are closed after it."""
    found: list[Driver] = []
    yield found
    for driver in found:
        driver.close()
