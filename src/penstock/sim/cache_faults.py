"""The caches of a group of nodes under faults: the real keepers, with fake memory, disks, networks, sources and ranks, in virtual time.

`play(schedule)` plays a training and raises `Violation` when a promise is broken; `cache_schedule.draw_cache(seed)` makes a random schedule.

Rule 1: a schedule is a function of its seed. Messages, reads and writes take any time, so they end in any order; only a rank's stream to its service
        keeps the order.
Rule 2: nothing has a deadline here. Where two wait for each other, the schedule ends with ranks that wait, and that is a violation.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.sim.cache_machine import CacheMachine
from penstock.sim.cache_ranks import TrainingRank
from penstock.sim.cache_schedule import CacheFault, CacheSchedule, CacheSetting
from penstock.sim.memory import Violation

MOST_EVENTS = 100
"""Events per use of a sample until a schedule is said to go on for ever. Usual are 3."""


class CacheWorld(CacheSetting):
    def __init__(self, schedule: CacheSchedule, *, audits: bool = True) -> None:
        super().__init__(schedule, audits=audits)
        self.machines: list[CacheMachine] = []
        self.machines += [CacheMachine(self, node, self.machines) for node in range(schedule.nodes)]
        self.ranks = [
            TrainingRank(self, number, self.machines[number // schedule.gpus], self.released)
            for number in range(schedule.world)
        ]

    # ---- playing

    def run(self) -> None:
        schedule = self.schedule
        for rank in self.ranks:
            rank.begin()
        faults = sorted(schedule.faults, reverse=True)
        most = MOST_EVENTS * (self.steps * schedule.world * schedule.batch_size + 50)
        while self.agenda.step():
            while faults and faults[-1].step <= self.agenda.steps:
                self._strike(faults.pop())
            if self.agenda.steps > most:
                raise Violation(f"after {most} events it still goes on")
        for rank in self.ranks:
            rank.must_be_done()
        for machine in self.machines:
            machine.must_be_at_rest()
        if schedule.is_calm:
            self._check_traffic()

    def _strike(self, fault: CacheFault) -> None:
        schedule = self.schedule
        if fault.what == "rank":
            struck = self.ranks[fault.which % schedule.world].die()
        elif fault.what == "service":
            struck = self.machines[fault.which % schedule.nodes].die()
            if struck:
                for rank in self.ranks:
                    rank.note_service_death(fault.which % schedule.nodes)
        else:
            struck = self._cut(*divmod(fault.which, schedule.nodes))
        self.tally[fault.what] += struck

    def _cut(self, one: int, other: int) -> bool:
        pair = frozenset((one % self.schedule.nodes, other))
        if len(pair) < 2 or pair in self.cut:
            return False
        self.cut.add(pair)
        one, other = pair
        self.machines[one].peers.lose(other)
        self.machines[other].peers.lose(one)
        self.agenda.after(self.later(20.0), self.cut.discard, pair)
        return True

    def released(self) -> Iterator[TrainingRank]:
        """Return the ranks that may begin their next step now that another one has come to its end."""
        if not self.schedule.together:
            return (rank for rank in self.ranks if rank.waits)
        slowest = min(rank.at for rank in self.ranks)
        return (rank for rank in self.ranks if rank.waits and rank.at <= slowest)

    def _check_traffic(self) -> None:
        """Without faults the source serves each sample once, and then what no cache can keep."""
        schedule = self.schedule
        if schedule.policy != "auto" or not schedule.planned or schedule.spread:
            return
        served = 0
        in_vain = self.tally["no room"]
        if schedule.is_roomy and in_vain:
            raise Violation(f"{in_vain} samples found no room")
        most = 2.0 * in_vain  # whoever asked reads it again, and its home does at its next use
        for epoch in range(schedule.epochs):
            served += self.served[epoch]  # so far: a rank may be in the next epoch before another has asked
            most += schedule.samples * (1.01 * schedule.bound + 0.01 if epoch else 1.0)
            if served > most + 1e-6:
                raise Violation(
                    f"by the end of epoch {epoch} the source served {served} samples, not {most:.1f}"
                )
        if served < schedule.samples:
            raise Violation(f"the source served {served} of {schedule.samples} samples")


def play(schedule: CacheSchedule, *, audits: bool = True) -> CacheWorld:
    """Play a schedule to its end. `audits`: whether the keepers' books are checked after every event."""
    world = CacheWorld(schedule, audits=audits)
    world.run()
    return world
