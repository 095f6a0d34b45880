"""A living job on a real cluster, with real kills, cuts and slow links: every sample once, the same bytes, and workers that come back.

The short version of `scripts/bench remote_campaign`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

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


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_a_fault_costs_time_and_nothing_else(cluster: Cluster, job: RemoteJob, fault: ClusterFault) -> None:
    inject(cluster, job, fault, random.Random(fault.name))
