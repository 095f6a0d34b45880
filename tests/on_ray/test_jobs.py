"""Living jobs on a real cluster: the same batches as without it; with real kills, cuts and slow links every sample once, the same bytes, and
workers that come back. The short version of `scripts/bench remote_campaign`.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.on_ray.cluster import Cluster
from tests.on_ray.driver import until_gone
from tests.on_ray.faults import FAULTS, ClusterFault, RemoteJob, inject


@pytest.fixture(scope="module")
def job(cluster: Cluster) -> Iterator[RemoteJob]:
    found = RemoteJob(cluster)
    found.until_remote()
    yield found
    found.close()
    until_gone(cluster, 20)


@pytest.mark.parametrize("tls", [False, True])
def test_a_loader_has_the_same_batches_from_workers_of_the_cluster(cluster: Cluster, tls: bool) -> None:
    """The whole way: node process, ferry, gateway, actors, their servers, and samples over TCP into the arena."""
    if tls:
        pytest.importorskip("cryptography")
    program = [sys.executable, "-m", "tests.on_ray.training", "240", *(["tls"] if tls else [])]
    said = cluster.run("h0", program, timeout_s=400)
    found = json.loads(said.strip().splitlines()[-1])
    assert found == {"same": True, "hosts": ["h0", "h1", "h2"]}
    until_gone(cluster, 20)


def test_a_loader_has_the_same_batches_by_every_plan(cluster: Cluster, tmp_path: Path) -> None:
    """The cluster's workers cannot see the photos that are sent to them as bytes."""
    pytest.importorskip("PIL.Image")
    program = [sys.executable, "-m", "tests.on_ray.plans", str(tmp_path), "100"]
    said = cluster.run("h0", program, timeout_s=500)
    right = {"same": True, "elsewhere": ["h1", "h2"]}
    assert json.loads(said.strip().splitlines()[-1]) == dict.fromkeys(
        ("samples", "bytes", "batches", "cut"), right
    )
    until_gone(cluster, 20)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_a_fault_costs_time_and_nothing_else(cluster: Cluster, job: RemoteJob, fault: ClusterFault) -> None:
    inject(cluster, job, fault, random.Random(fault.name))
