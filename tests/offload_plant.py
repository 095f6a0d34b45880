"""A machine with local and remote workers, as arithmetic: what `policy/refinement.py` is tried on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from penstock.policy.offload import Decision, Metrics, PlanMetrics, decide
from penstock.policy.refinement import Observed, Refinement, Setting, after_window, refinement

SHARES = tuple(at / 100 for at in range(101))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """Rates in samples per second, costs in CPU seconds per sample."""

    training: float = 1000.0
    cores: float = 4.0
    """CPU seconds per second here, for preparing and for handling."""
    preparing_s: float = 0.04
    handling_s: float = 0.002
    worker: float = 25.0
    """Rate of one remote worker."""
    workers: int = 4
    link: float = 1e9
    """Samples per second that the link carries."""
    crowding: float = 0.0
    """Share of its rate that each remote worker costs all others."""

    @property
    def local(self) -> float:
        return min(self.training, self.cores / self.preparing_s)

    def remote(self, workers: int) -> float:
        return min(self.link, workers * self.worker * max(0.1, 1.0 - self.crowding * (workers - 1)))

    def rate(self, share: float, workers: int | None = None) -> float:
        remote = self.remote(self.workers if workers is None else workers)
        cost_s = (1.0 - share) * self.preparing_s + share * self.handling_s
        by_remote = remote / share if share > 0 else float("inf")
        return min(self.training, by_remote, self.cores / max(cost_s, 1e-12))

    def idle(self, rate: float, share: float) -> float:
        """Return the share of the CPU time here that nobody uses."""
        return 1.0 - rate * ((1.0 - share) * self.preparing_s + share * self.handling_s) / self.cores

    def best(self, workers: Iterable[int] = ()) -> float:
        """By brute force over shares, and over numbers of workers if given."""
        counts = tuple(workers) or (self.workers,)
        return max(self.rate(share, count) for share in SHARES for count in counts)

    def metrics(self) -> Metrics:
        plan = PlanMetrics(name="all", remote=self.rate(1.0), handling_s=self.handling_s)
        return Metrics(training=self.training, local=self.local, preparing_s=self.preparing_s, plans=(plan,))

    def faster(self, **factors: float) -> Plant:
        """With some of its numbers multiplied."""
        return replace(self, **{name: getattr(self, name) * by for name, by in factors.items()})


@dataclass(slots=True)
class Run:
    """Each window's setting, and its rate without noise."""

    settings: list[Setting]
    rates: list[float]
    held: list[float]
    """The rate of the setting that is held, whatever is being tried."""
    end: Refinement

    def mean(self, first: int, last: int) -> float:
        return sum(self.rates[first:last]) / (last - first)


def refined(
    plant_at: Callable[[int], Plant],
    *,
    windows: int,
    noise: float = 0.0,
    seed: int = 0,
    decision: Decision | None = None,
    most: int | None = None,
) -> Run:
    """Let a refinement run a plant that may change with time. An evaluation makes a window slow now and then."""
    rng, first = random.Random(seed), plant_at(0)
    decision = decide(first.metrics()) if decision is None else decision
    state = refinement(decision, workers=first.workers, most=most)
    run = Run([], [], [], state)
    before = state.setting
    for at in range(windows):
        plant, setting = plant_at(at), state.setting
        run.settings.append(setting)
        run.held.append(plant.rate(*state.held))
        # A window after a change still has batches of the setting before.
        rate = min(plant.rate(*setting), plant.rate(*before)) if before != setting else plant.rate(*setting)
        before = setting
        run.rates.append(rate)
        seen = rate * max(0.3, rng.gauss(1.0, noise)) * (0.4 if noise and rng.random() < 0.01 else 1.0)
        observed = Observed(seen, waits=rate < 0.98 * plant.training, idle=plant.idle(rate, setting.share))
        state = after_window(state, observed)
    run.end = state
    return run
