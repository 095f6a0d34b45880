"""What a loader says about remote workers: with a cluster, and without one."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.measure.host import link_bytes_s
from penstock.policy.course_state import Course, OffloadTerms
from penstock.policy.course_values import told
from penstock.policy.diagnosis import diagnose
from penstock.policy.offload_text import explained_offload, remote_help, remote_remark

RECENT = {
    "batches": 100, "samples": 1600, "elapsed_s": 16.0, "wait_s": 12.0, "wait_share": 0.75, "workers": 2, "busy_s": 32.0,
    "cpu_s": 32.0, "delayed_s": 0.0, "handover_s": 0.0, "borrowed_cores": 0.0, "first_wait_s": 0.0, "first_share": 0.0,
}  # fmt: skip


def stats(remote: dict[str, Any] | None = None, **recent: Any) -> dict[str, Any]:
    return {
        "engine": "workers",
        "batches": 100,
        "recent": {**RECENT, **recent},
        "gpu": None,
        "reuse": None,
        "sample_bytes": 150_000,
        "remote": remote,
    }


def account(stage: str = "refining", **facts: Any) -> dict[str, Any]:
    course = Course(training=400.0, local=100.0, preparing_s=0.02)
    counts = {"workers_had": 2, "samples": 900, "link_bytes_per_second": 2e6, "workers": []}
    return {
        **told(course, OffloadTerms()),
        **counts,
        "stage": stage,
        "share": 0.6,
        "workers_wanted": 2,
        **facts,
    }


def test_without_a_cluster_it_says_how_many_remote_workers_would_help() -> None:
    said = diagnose(stats(), cores=2, link_bytes_s=125e6)
    assert "all cores are in use" in said
    assert (
        " 6 remote workers (remote=) would make it about 4.0 times as fast, when training itself is the limit."
        in said
    )


def test_a_slow_network_is_named_and_one_that_is_too_slow_is_no_advice() -> None:
    assert "when the network is the limit" in remote_help(stats(), link_bytes_s=15e6)
    assert remote_help(stats(), link_bytes_s=1e6) == ""


@pytest.mark.parametrize(
    "recent", [{"wait_s": 0.1, "wait_share": 0.006}, {"cpu_s": 0.0}, {"wait_s": 1.0, "wait_share": 0.0625}]
)
def test_nothing_is_advised_where_they_would_not_help(recent: dict[str, float]) -> None:
    assert "remote" not in diagnose(stats(**recent), cores=2, link_bytes_s=125e6)


def test_where_they_are_used_it_says_so_and_what_is_short() -> None:
    assert remote_remark(account()) == " 2 remote workers prepare up to 60% of the samples."
    short = remote_remark(account(workers_wanted=5))
    assert short.endswith("; 5 are wanted, and the cluster gives no more.")
    assert "would make it" not in diagnose(stats(account()), cores=2, link_bytes_s=125e6)


def test_the_reason_is_said_while_they_are_not_used() -> None:
    assert "measured first" in remote_remark(account("local"))
    assert remote_remark(None) == remote_remark({}) == ""


def test_the_explanation_has_the_decision_and_its_numbers() -> None:
    said = explained_offload(account(reason="offload 60% by samples"), streams=False)
    assert "offload 60% by samples" in said
    assert "100 samples/s, 20 ms of CPU each" in said
    assert "at most 60% of the samples by samples; 2 of 2 wanted workers are there" in said


def test_the_explanation_says_what_is_not_possible() -> None:
    assert "iterable dataset" in explained_offload({}, streams=True)
    assert "nothing is measured yet" in explained_offload({}, streams=False)


def test_the_network_has_a_speed() -> None:
    assert link_bytes_s() > 0


def test_the_explanation_says_where_the_rates_come_from_and_why_they_are_not_kept() -> None:
    assert "  rates: measured now" in explained_offload(account(), streams=False)
    facts = {"rates_from": "stored on 2026-11-18 by penstock profile", "verified": False}
    said = explained_offload(account(**facts, not_stored="not kept: the disk is full"), streams=False)
    assert "  rates: stored on 2026-11-18 by penstock profile, to be verified" in said
    assert said.endswith("\n  not kept: the disk is full")
