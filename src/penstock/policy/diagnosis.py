"""One sentence about a run: what limits it and what would help, with the predicted gain.

Rule 1: only the recent steady state counts (`stats()["recent"]`), without start-up, first batches and pauses.
Rule 2: a prediction comes from one model. With `m` workers a run is faster than now by the least of three factors:
        1 / (1 - wait share)   training itself is the limit
        m / busy workers       the workers are
        cores / cores used     the CPUs are
        A blocked worker (reading, sleeping) is busy but uses no core, so more workers than cores can help.
Rule 3: more workers are advised only if training waits, the workers are busy, and the model predicts a gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock.policy.cache_text import cache_remark
from penstock.policy.offload_text import remote_help, remote_remark
from penstock.policy.straggler_text import straggler_remark

FEW = 10
"""Fewer batches than this say nothing."""
FINE = 0.02
"""Wait share below which no advice is given."""
SMALL = 0.05
"""Wait share below which only more workers or cores are advised."""
IDLE = 0.5
"""Busy share below which workers are not the bottleneck."""
SLACK = 0.05
"""Measurement error of the needed worker count."""
FOLD = 8
"""Largest multiple of the present worker count that is predicted; beyond is a guess."""
MOST_PER_CORE, MOST = 8, 16
"""Most workers advised: per core, or in all if that is more. Each takes memory."""
CROWDED = 0.1
"""Share of worker time waiting for a core above which others use the cores."""
WORTH = 1.1
"""Predicted gain below which no workers are added to nearly saturated cores."""
CHEAP_S = 0.002
"""A batch prepared faster than this costs more to pass between processes."""
NOTABLE = 0.1
"""Share of the time from which first batches and handover are mentioned."""
LOADING = 0.8
"""Wait share from which training is so short that the speed-up says more than the share."""
LENT = 0.1
"""Cores lent or borrowed, as a share of the workers, from which that is mentioned."""

KEEPS_UP = "Training does not wait for data."


class Limit(StrEnum):
    """What limits a run."""

    NOTHING = "nothing: training is the limit"
    INLINE = "preparation in the training process"
    UNMEASURED = "workers that are not measured"
    WORKERS = "too few workers"
    CORES = "too few cores"
    CROWD = "cores that others use"
    READS = "samples that are blocked, with many workers"
    IDLE_WORKERS = "something else: workers are idle"
    UNEVEN = "late batches: workers keep up on average"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A run in steady state."""

    wait_share: float
    """Share of the time that training waits, 0 to 1."""
    workers: int
    busy: float
    """Average number of workers working on samples, blocked or computing."""
    cpu: float
    """Average number of cores they use."""
    delayed: float
    """Average number of workers waiting for a core."""
    cores: int
    borrowed: float = 0.0
    """Average number of cores borrowed, less those lent."""
    most: int | None = None
    """Upper bound on workers, if something else sets one."""

    def share(self, working: float) -> float:
        """Return a share of the workers' time. `workers` is a rounded average: they may have worked for longer."""
        return working / max(1.0, self.workers, self.busy + self.delayed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    kind: Limit
    more: int = 0
    """Workers to add."""
    left: float = 0.0
    """Predicted wait share with these."""
    gain: float = 1.0
    """Predicted speed-up with these."""
    needed_cores: int = 0


def judged(facts: Facts) -> Verdict:
    """Return the bottleneck, and how many workers would help."""
    if facts.wait_share < FINE:
        return Verdict(kind=Limit.NOTHING)
    if not facts.workers:
        return Verdict(kind=Limit.INLINE)
    if facts.busy <= 0:
        return Verdict(kind=Limit.UNMEASURED)
    computes = facts.cpu >= facts.busy / 2
    occupied = min(float(facts.workers), facts.busy + facts.delayed)
    by_training = 1 / max(1e-9, 1 - facts.wait_share)
    if occupied < IDLE * facts.workers or math.ceil(occupied * by_training - SLACK) <= facts.workers:
        if facts.wait_share < SMALL:
            return Verdict(kind=Limit.NOTHING)
        return Verdict(kind=Limit.IDLE_WORKERS if occupied < IDLE * facts.workers else Limit.UNEVEN)
    crowded = computes and facts.delayed > CROWDED * occupied
    used = max(facts.cpu, 1e-9)
    by_cores = 1.0 if crowded else max(1.0, facts.cores / used)
    # Waiting for a core lengthens blocked samples too; computing ones then lack cores, not workers.
    occupied = facts.busy if computes else occupied
    most = min(by_training, by_cores)
    needed = math.ceil(occupied * most - SLACK)
    cap = max(MOST, MOST_PER_CORE * facts.cores) if facts.most is None else facts.most
    wanted = min(needed, FOLD * facts.workers, cap)
    gain = min(most, wanted / occupied)
    is_full = needed <= facts.workers or (by_cores < by_training and most < WORTH)
    if is_full or (computes and wanted <= facts.workers):
        kind = Limit.CROWD if crowded else Limit.CORES
        return Verdict(kind=kind, needed_cores=max(facts.cores + 1, math.ceil(used * by_training - SLACK)))
    if wanted <= facts.workers:
        return Verdict(kind=Limit.READS)
    left = min(facts.wait_share, max(0.0, 1 - gain * (1 - facts.wait_share)))
    return Verdict(kind=Limit.WORKERS, more=wanted - facts.workers, left=left, gain=gain)


def facts_of(stats: Mapping[str, Any], *, cores: int, most: int | None = None) -> Facts:
    """Extract the facts from `loader.stats()`."""
    recent = stats["recent"]
    elapsed_s = max(1e-9, recent["elapsed_s"])
    return Facts(
        wait_share=min(1.0, max(0.0, recent["wait_share"])),
        workers=recent["workers"] if stats["engine"] == "workers" else 0,
        busy=recent["busy_s"] / elapsed_s,
        cpu=recent["cpu_s"] / elapsed_s,
        delayed=recent["delayed_s"] / elapsed_s,
        cores=cores,
        borrowed=recent["borrowed_cores"],
        most=most,
    )


def diagnose(
    stats: Mapping[str, Any],
    *,
    cores: int,
    most: int | None = None,
    gpu: bool = False,
    link_bytes_s: float = 0.0,
) -> str:
    """Describe `loader.stats()` in a sentence. `most`: bound on workers; `gpu`: a GPU is there that could prepare samples; `link_bytes_s`: to
    other machines, whose CPUs may help."""
    said = described(stats, cores=cores, most=most, gpu=gpu)
    if stats["engine"] != "workers" or stats["recent"]["batches"] < FEW:
        return said
    kind = judged(facts_of(stats, cores=cores, most=most)).kind
    lacks_cores = kind in (Limit.CORES, Limit.CROWD)
    return (
        said
        + straggler_remark(stats.get("node"))
        + remote_remark(stats.get("remote"))
        + cache_remark(stats.get("cache"), waits=kind is Limit.IDLE_WORKERS)
        + (remote_help(stats, link_bytes_s=link_bytes_s) if lacks_cores else "")
    )


def described(stats: Mapping[str, Any], *, cores: int, most: int | None, gpu: bool) -> str:
    if stats["engine"] == "torch":
        return "torch's own loader runs here, so nothing is measured."
    recent = stats["recent"]
    if stats["batches"] < FEW:
        return f"only {counted(stats['batches'], 'batch')} so far; a diagnosis needs {FEW}."
    if recent["batches"] < FEW:
        return f"only {counted(recent['batches'], 'batch')} of a steady run so far; a diagnosis needs {FEW}."
    facts = facts_of(stats, cores=cores, most=most)
    verdict = judged(facts)
    if verdict.kind is Limit.NOTHING:
        return KEEPS_UP + beside(recent)
    waits = f"training waits {facts.wait_share:.0%} of the time for preparation"
    where = place(facts)
    match verdict.kind:
        case Limit.INLINE:
            return f"{waits}, which happens in the training process itself; num_workers='auto' would use {counted(cores, 'core')}."
        case Limit.UNMEASURED:
            return f"{waits}; its workers are torch's own here, and what they do is not measured."
        case Limit.IDLE_WORKERS:
            return f"{waits}, yet {where}: {why_idle(recent)}"
        case Limit.UNEVEN:
            return (
                f"{waits}, yet {where}: they keep up on average, and single batches come late. Look at slow samples (trace= shows "
                f"them) or other load on this machine before adding workers."
            )
        case Limit.CORES:
            wanted = (
                f", and about {verdict.needed_cores} would be needed" if facts.wait_share < LOADING else ""
            )
            return f"{waits}; {where}: all cores are in use{wanted}. {instead(stats, gpu=gpu)}"
        case Limit.CROWD:
            return (
                f"{waits}; {where} and waiting for a core {facts.share(facts.delayed):.0%} of it: training or other programs use the cores too. "
                f"{instead(stats, gpu=gpu)}"
            )
        case Limit.READS:
            return (
                f"{waits}; {where}: there are as many workers as make sense here. Faster storage, fewer and larger reads (TarDataset) or reuse "
                f"would help more than still more of them."
            )
        case Limit.WORKERS:
            return f"{waits}; {where}; {predicted(facts, verdict)}"
    raise AssertionError(verdict.kind)


def blocked(facts: Facts) -> float:
    """Return the share of busy time in which a worker does not compute."""
    return max(0.0, 1 - facts.cpu / facts.busy) if facts.busy > 0 else 0.0


def place(facts: Facts) -> str:
    share = blocked(facts)
    mostly = f", {share:.0%} of that blocked (reading or waiting, not computing)" if share >= 0.5 else ""
    return f"{counted(facts.workers, 'worker')}{moved(facts)} on {counted(facts.cores, 'core')}, busy {facts.share(facts.busy):.0%} of the time{mostly}"


def moved(facts: Facts) -> str:
    """Mention cores lent or borrowed, on average."""
    if abs(facts.borrowed) < LENT * max(1, facts.workers):
        return ""
    return f" ({abs(facts.borrowed):.1f} {'of them borrowed' if facts.borrowed > 0 else 'more were lent'})"


def predicted(facts: Facts, verdict: Verdict) -> str:
    if verdict.left <= FINE:
        what = "remove it"
    elif verdict.left < LOADING:
        what = f"reduce it to {verdict.left:.0%}"
    else:
        what = f"make it {verdict.gain:.1f} times as fast"
    than = ""
    if facts.workers + verdict.more > facts.cores:
        than = f" (more workers than cores: each is blocked {blocked(facts):.0%} of its time)"
    return f"{verdict.more} more {'is' if verdict.more == 1 else 'are'} predicted to {what}{than}."


def why_idle(recent: Mapping[str, Any]) -> str:
    each_s = recent["busy_s"] / recent["batches"]
    if each_s < CHEAP_S:
        return (
            f"a batch is prepared in {1000 * each_s:.1f} ms, and passing it between processes takes longer. Larger batches or "
            f"num_workers=0 would help, more workers would not."
        )
    return (
        "more workers would not help. Look at single slow samples (trace= shows them), at prefetch_batches, and at memory "
        "for batches (slab_bytes)."
    )


def instead(stats: Mapping[str, Any], *, gpu: bool) -> str:
    """Name what helps if more workers do not."""
    ways = ["Cheaper samples"]
    if stats.get("reuse") is None:
        ways.append("reuse")
    if gpu:
        ways.append("the GPU (gpu_prep)")
    return f"{', '.join(ways)} or more CPUs would help, more workers would not."


def beside(recent: Mapping[str, Any]) -> str:
    """Return a remark worth making though training does not wait."""
    if recent["first_share"] >= NOTABLE:
        return (
            f" The first batch of a later epoch takes {recent['first_wait_s']:.1f} s, {recent['first_share']:.0%} of the time: "
            f"persistent_workers=True keeps the workers between epochs."
        )
    share = recent["handover_s"] / max(1e-9, recent["elapsed_s"])
    if share >= NOTABLE:
        return f" Taking a batch that is ready is {min(1.0, share):.0%} of the time: larger batches are taken less often."
    return ""


def counted(count: int, what: str) -> str:
    if count == 1:
        return f"{count} {what}"
    return f"{count} {what}es" if what.endswith("ch") else f"{count} {what}s"
