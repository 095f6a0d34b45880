"""`penstock.profile`: what training, local workers and remote workers can do, each alone, and what follows from that."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from penstock.client.arguments import TorchArguments
from penstock.client.remote_side import RemoteSide, side_of
from penstock.client.workload import plans_of, workload_of
from penstock.config import MOST_REMOTE
from penstock.errors import ConfigError
from penstock.loader import DataLoader
from penstock.measure.host import link_bytes_s
from penstock.measure.metric_store import ACTIVE, Workload, save
from penstock.policy.offload import (
    THRESHOLD,
    Decision,
    Metrics,
    PlanMetrics,
    RemoteHelp,
    decide,
    worth_asking,
)
from penstock.profiling.alike import alike
from penstock.profiling.kept import check_keep, kept
from penstock.profiling.rates import HELD, LoaderTrial, NodeSeen, bytes_of, training_rate
from penstock.report.display import TextBar

SILENT_S = 1.5
"""Progress is shown after so long."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was measured, and what follows."""

    metrics: Metrics
    decision: Decision
    workload: Workload
    remote_help: RemoteHelp | None
    """Remote workers that would help a loader that has none."""
    notes: tuple[str, ...] = ()
    took_s: float = 0.0

    def __str__(self) -> str:
        return "\n".join(lines_of(self))


def lines_of(profile: Profile) -> list[str]:
    metrics, workload = profile.metrics, profile.workload
    workers = f"{workload.workers} local worker{'s' * (workload.workers != 1)}"
    lines = [
        f"{'training alone':<24} {metrics.training:10,.1f} samples/s",
        f"{workers:<24} {metrics.local:10,.1f} samples/s, {metrics.preparing_s * 1e3:.3g} ms of CPU time per sample",
    ]
    for plan in metrics.plans:
        cost = f"{plan.handling_s * 1e3:.3g} ms of CPU time here per sample"
        lines.append(f"{f'remote workers, {plan.name}':<24} {plan.remote:10,.1f} samples/s, {cost}")
    lines.append(profile.decision.reason)
    return [*lines, *profile.notes]


def profile(
    step: Callable[[Any], Any],
    loader: DataLoader[Any],
    *,
    keep: Iterable[Any] = (),
    seconds: float = 10.0,
    model: str = "",
) -> Profile:
    """Measure, decide and store: training by `step(batch)`, local workers, remote ones by each plan. Takes about `seconds`.

    `keep`: the model, the optimizer and whatever else `step` changes (anything with `state_dict`): restored afterwards, like all
    generators. The loader, its sampler and its position stay as they are. `model`: a name to store the result under; by default the
    parameters of the first module in `keep` are its name. With several ranks, all call this.
    """
    kept_objects = list(keep)
    check_keep(kept_objects)
    check_loader(loader)
    if not seconds > 0:
        raise ConfigError(f"seconds must be above 0, got {seconds!r}")
    module = next((one for one in kept_objects if isinstance(one, torch.nn.Module)), "")
    with kept(kept_objects), Announcer() as tell:
        stages = measured(loader, seconds=seconds, model=model or module, tell=tell)
        while True:
            try:
                batch = next(stages)
            except StopIteration as end:
                found: Profile = end.value
                return found
            step(batch)


def check_loader(loader: object) -> None:
    if not isinstance(loader, DataLoader):
        raise ConfigError(f"profile needs a penstock.DataLoader, got {type(loader).__name__}")
    if sys.platform != "linux" or (why := loader._not_ours()):
        raise ConfigError(
            f"profile measures penstock's own workers: {'Linux only' if sys.platform != 'linux' else why}"
        )


def measured(
    loader: DataLoader[Any], *, seconds: float, model: Any, tell: Tell
) -> Generator[Any, None, Profile]:
    """Measure each part for its share of the time, and store the result. Yields batches to train with, one step each."""
    began_s = time.monotonic()
    side = loader._remote = None if loader._epochs.source.streams else side_of(loader._config, loader._remote)
    plans = () if side is None else plans_of(side, loader._config, TorchArguments.of(loader))
    share_s = seconds / (2 + len(plans))
    notes = ["reuse= is left out: this is the cost of a sample's first use"] if loader.reuse else []
    tell("local workers alone")
    with LoaderTrial(alike(loader)) as trial:
        span = trial.measure(share_s)
        held = [trial.take() for _ in range(HELD)]
    local, preparing_s = span.delivered / span.elapsed_s, span.cpu_s / span.delivered
    tell("training alone")
    rate = yield from training_rate(held, share_s)
    sample_bytes = sum(bytes_of(batch) for batch, _ in held) / max(1, sum(size for _, size in held))
    held = []
    found = []
    for plan in plans if rate >= THRESHOLD * local else ():
        assert side is not None
        tell(f"remote workers alone, {plan}")
        one = remote_metrics(loader, side, plan, share_s, preparing_s)
        if one is None:
            notes.append(f"{plan}: no remote worker has come, so it was not measured")
        else:
            found.append(one)
    metrics = Metrics(training=rate, local=local, preparing_s=preparing_s, plans=tuple(found))
    given = TorchArguments.of(loader)
    if not given.num_workers:
        notes.append("num_workers=0: measured with one worker")
    workload = workload_of(
        loader._config, replace(given, num_workers=max(1, given.num_workers)), side, model=model
    )
    helped = None
    if side is None:
        helped, said = help_wanted(metrics, sample_bytes)
        notes.append(said)
    if (
        not plans or found or rate < THRESHOLD * local
    ):  # not if remote workers failed to come: they may next time
        save(workload, metrics, ACTIVE)
    return Profile(
        metrics=metrics,
        decision=decide(metrics),
        workload=workload,
        remote_help=helped,
        notes=tuple(notes),
        took_s=time.monotonic() - began_s,
    )


def remote_metrics(
    loader: DataLoader[Any], side: RemoteSide, plan: str, seconds: float, preparing_s: float
) -> PlanMetrics | None:
    """Measure a plan by which all is prepared remotely; None if no remote worker comes."""
    seen = NodeSeen(side)
    only = replace(side, plan=plan, share=1.0, open_ferry=seen.open_ferry)
    with LoaderTrial(alike(loader, only), lambda: seen.pid) as trial:
        workers = trial.join(side.most or len(side.addresses))
        if not workers:
            return None
        span = trial.measure(seconds)
    if not span.remote:
        return None
    # Where remote workers did not keep up, local ones helped: that is not the plan's cost.
    handling_s = max(0.0, span.cpu_s - span.local * preparing_s) / span.remote
    return PlanMetrics(name=plan, remote=span.remote / span.elapsed_s, handling_s=handling_s, workers=workers)


def help_wanted(metrics: Metrics, sample_bytes: float) -> tuple[RemoteHelp | None, str]:
    """Return how many remote workers would help a loader without any, and a line about it."""
    link = link_bytes_s()
    found = worth_asking(
        training=metrics.training,
        local=metrics.local,
        preparing_s=metrics.preparing_s,
        sample_bytes=sample_bytes,
        link_bytes_s=link,
        most=MOST_REMOTE,
    )
    if found is None:
        return None, "remote workers would not help"
    over = f"a link of {link * 8e-9:.3g} Gbit/s"
    number = f"{found.workers} remote worker{'s' * (found.workers != 1)}"
    return (
        found,
        f"{number} would give about {found.expected:,.0f} samples/s, limited by {found.limit}, over {over}",
    )


class Announcer:
    """Shows on a terminal what is measured, once that takes a while: a profile without it would look like a hang."""

    def __init__(self) -> None:
        self._began_s, self._done = time.monotonic(), 0
        self._bar: TextBar | None = None

    def __enter__(self) -> Tell:
        return self._tell

    def _tell(self, stage: str) -> None:
        if self._bar is None and sys.stderr.isatty() and time.monotonic() - self._began_s > SILENT_S:
            self._bar = TextBar("penstock.profile:", None)
        self._done += 1
        if self._bar is not None:
            self._bar.show(self._done, stage)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
