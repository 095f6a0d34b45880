"""Runs `policy/course.py` on a machine that is arithmetic (`offload_plant`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from penstock.policy.course import after, hired, resumed, wish
from penstock.policy.course_state import Course, OffloadTerms, Stage, WindowSeen, Wish
from penstock.policy.course_values import packed, unpacked
from tests.offload_plant import Plant

ONE = OffloadTerms(plans=("samples",), most=8)


@dataclass
class Drive:
    """A course on a plant. Workers come some windows after they were asked for, unless the cluster has none."""

    plant_at: Callable[[int, str], Plant]
    terms: OffloadTerms = ONE
    comes_after: int = 2
    noise: float = 0.0
    there: Callable[[int], int] = lambda _: 1000
    """Workers that the cluster has, by window."""
    new_agent: Callable[[int], bool] = lambda _: False
    course: Course = field(default_factory=Course)
    at: int = 0
    had: int = 0
    asked: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)

    def run(self, windows: int) -> Drive:
        rng = random.Random(7)
        for _ in range(windows):
            if self.new_agent(self.at):
                self.course, self.had, self.asked = resumed(unpacked(packed(self.course))), 0, []
            wanted = wish(self.course, self.terms)
            self.asked = [*self.asked, wanted.workers][-self.comes_after - 1 :]
            came = min(self.asked) if len(self.asked) > self.comes_after else 0
            self.had = min(came, self.there(self.at))
            plant = self.plant_at(self.at, wanted.plan)
            share = wanted.share if self.had else 0.0  # local workers do everything without them
            rate = plant.rate(share, self.had)
            self.rates.append(rate)
            self.wishes.append(wanted)
            self.stages.append(self.course.stage)
            seen = rate * max(0.3, rng.gauss(1.0, self.noise))
            cpu_s = (1.0 - share) * plant.preparing_s + share * plant.handling_s
            window = WindowSeen(
                rate=seen,
                own=plant.training,
                wait=max(0.0, 1.0 - rate / plant.training),
                idle=plant.idle(rate, share),
                cpu_s=cpu_s,
                workers=self.had,
                local_workers=int(plant.cores),
            )
            assert self.had <= hired(self.course, self.terms) or self.comes_after
            self.course = after(self.course, window, self.terms)
            self.at += 1
        return self

    def mean(self, first: int) -> float:
        return sum(self.rates[first:]) / len(self.rates[first:])


def always(plant: Plant) -> Callable[[int, str], Plant]:
    return lambda _at, _plan: plant


plants = st.builds(
    Plant,
    training=st.floats(10, 1000),
    cores=st.floats(1, 16),
    preparing_s=st.floats(0.005, 0.1),
    handling_s=st.floats(0.0001, 0.05),
    worker=st.floats(0.5, 100),
    link=st.floats(5, 1e4),
)
