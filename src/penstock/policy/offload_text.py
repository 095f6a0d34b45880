"""What `explain()` and `diagnose()` say about remote workers, from `stats()["remote"]`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.policy.offload import worth_asking

MOST = 16
"""Remote workers to think of where nobody has said how many there may be."""


def explained_offload(told: Mapping[str, Any], *, streams: bool) -> str:
    """Return a paragraph: the decision with its numbers, and what is not possible."""
    if streams:
        return "remote workers are not used: an iterable dataset is prepared here, where its iterator is"
    if not told:
        return "remote workers: nothing is measured yet"
    lines = [f"remote workers: {told['reason']}"]
    lines.append(f"  {in_use(told)}")
    if told.get("local_rate"):
        lines.append(
            f"  local workers alone: {told['local_rate']:.4g} samples/s, {1e3 * told['preparing_s']:.3g} ms of CPU each; "
            f"training alone: {told['training_rate']:.4g} samples/s"
        )
    lines += [
        f"  plan {plan['name']}: {plan['remote']:.4g} samples/s with remote workers alone, "
        f"{1e3 * plan['handling_s']:.3g} ms of CPU here to handle one; share by Algorithm 1: {plan['share']:.0%}"
        for plan in told.get("plans", ())
    ]
    if told.get("rates_from"):
        lines.append(f"  rates: {told['rates_from']}{'' if told['verified'] else ', to be verified'}")
    if told.get("not_stored"):
        lines.append(f"  {told['not_stored']}")
    return "\n".join(lines)


def in_use(told: Mapping[str, Any]) -> str:
    """Say how remote workers are used now."""
    had, wanted = told["workers_had"], told.get("workers_wanted")
    there = (
        f"{had} of {wanted} wanted workers are there" if wanted is not None else f"{had} workers are there"
    )
    share = (
        "as much as delays no batch"
        if told["share"] is None
        else f"at most {told['share']:.0%} of the samples"
    )
    rate = told["link_bytes_per_second"] / 1e6
    return f"now: {share} by {told['plan']}; {there}; {told['samples']:,} samples so far, {rate:.3g} MB/s"


def remote_remark(told: Mapping[str, Any] | None) -> str:
    """Return a sentence on remote workers for a run that has some, or ""."""
    if not told:
        return ""
    if told["stage"] in ("local", "hiring", "trial"):
        return f" Remote workers: {told['reason']}."
    if not told["samples"]:
        return ""
    had, wanted, share = told["workers_had"], told.get("workers_wanted"), told["share"]
    limit = ""
    if wanted is not None and had < wanted:
        limit = f"; {wanted} are wanted, and the cluster gives no more"
    elif not share and told["stage"] == "refining":
        return " Remote workers are there, and local ones alone are as fast."
    part = "a part" if share is None else f"up to {share:.0%}"
    return f" {had} remote workers prepare {part} of the samples{limit}."


def remote_help(stats: Mapping[str, Any], *, link_bytes_s: float, most: int = MOST) -> str:
    """Return a sentence on how many remote workers would help a run that has none, or ""."""
    recent, sample_bytes = stats["recent"], stats.get("sample_bytes", 0)
    if stats.get("remote") is not None or not sample_bytes:
        return ""
    samples, elapsed_s, cpu_s = recent["samples"], recent["elapsed_s"], recent["cpu_s"]
    if min(samples, elapsed_s, cpu_s) <= 0:
        return ""
    own_s = max(1e-9, elapsed_s - recent["wait_s"])
    found = worth_asking(
        training=samples / own_s,
        local=samples / elapsed_s,
        preparing_s=cpu_s / samples,
        sample_bytes=sample_bytes,
        link_bytes_s=link_bytes_s,
        most=most,
    )
    if found is None:
        return ""
    gain = found.expected * elapsed_s / samples
    then = "" if found.limit == "workers" else f", when {LIMITS[found.limit]} is the limit"
    plural = "s" if found.workers > 1 else ""
    return f" {found.workers} remote worker{plural} (remote=) would make it about {gain:.1f} times as fast{then}."


LIMITS = {"training": "training itself", "link": "the network", "local CPUs": "receiving samples here"}
