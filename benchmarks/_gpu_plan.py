"""What `scripts/bench gpu` measures, in which order, and about how long it takes.

Nothing here imports torch: the process that plans, waits and reports has no use for a device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from _gpu_subjects import SUBJECTS, Subject

MODELS: Mapping[str, int] = {"resnet18": 512, "resnet50": 256, "vit_b_16": 256, "sound": 256, "tiny": 8}
"""Batch sizes. `sound` is a ResNet-18 on spectrograms, for the workload `audio`; `tiny` is for trying the script out without a GPU."""
WORKLOADS = ("W1", "W3")
"""Of the part `main`; `rivals` and `defaults` have W2 too, and the model `sound` takes `audio`."""
START_S: Mapping[str, float] = {
    "limit": 0.5,
    "torch": 2.0,
    "timm": 2.0,
    "gpu_ops": 3.0,
    "dali": 4.0,
    "spdl": 8.0,
    "ours": 3.0,
}
"""Seconds from asking for a feed to its first batch and from its last to its end, for the estimate."""
MODEL_S = 8.0
"""Seconds for a process to begin and to tune a model."""
FIT_TRIAL_S = 6.0
FILLED_PER_S = 4000.0
"""Samples that all cores together prepare and keep in a second."""


RIVALS = (
    *("limit", "torch", "timm", "gpu_ops", "dali", "dali_40", "dali_90", "dali_hints"),
    *("dali_whole", "dali_whole_90", "dali_chw", "dali_16", "spdl", "spdl_mp", "tv_auto"),
)
DEFAULTS = ("limit", "tv_auto", "tv_on", "tv_off", "tv_idle")
MAIN = ("limit", "torch", "dali", "off", "on", "on_auto", "idle")
CPU_GPU_RATIOS = (2, 3, 4, 5, 6)
"""Workers of Revamper's figure 13."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One measurement; all of it together is its name."""

    part: str
    group: str = ""
    model: str
    batch: int
    workload: str = ""
    workers: int = 0
    subject: str
    repeat: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(getattr(self, each.name) for each in fields(self))

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Job:
        return cls(**{each.name: row[each.name] for each in fields(cls)})

    def __str__(self) -> str:
        said = [self.part, self.group, self.model, f"b{self.batch}", self.workload]
        said += [f"{self.workers} workers" if self.workers else "", self.subject, f"#{self.repeat + 1}"]
        return " ".join(word for word in said if word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What of the campaign is wanted."""

    models: Sequence[str]
    workloads: Sequence[str] = ("W1",)
    subjects: Sequence[str] = ()
    """Empty: those of the part."""
    workers: Sequence[int]
    groups: Sequence[str] = ()
    """Of a part that has several; empty: all."""
    repeats: int = 1
    batch: int = 0
    """0: the model's own."""
    seconds: float = 6.0
    warmup: float = 5.0
    period: float = 8.0
    crew: Sequence[int] = (4, 8, 12, 8, 4)
    steps: int = 1000
    dali: bool = False
    """Whether it is there."""
    spdl: bool = False
    samples: int = 12_288
    """Of an epoch, where partly prepared ones are used several times."""
    cores: int = 16

    def named(self, part_has: Iterable[str]) -> list[str]:
        return [name for name in self.subjects or part_has if self.has(SUBJECTS[name])]

    def has(self, subject: Subject) -> bool:
        """Whether it can be measured with what is installed."""
        installed = {"dali": self.dali, "spdl": self.spdl}
        return installed.get(subject.kind, True)

    def wants(self, group: str) -> bool:
        return not self.groups or group in self.groups

    def size(self, model: str) -> int:
        return self.batch or MODELS[model]


def turned(names: Sequence[str], repeat: int) -> list[str]:
    """First becomes last in every other round, so that slow drift does not favour anyone."""
    return list(names) if repeat % 2 == 0 else list(reversed(names))


def main_jobs(chosen: Choice) -> list[Job]:
    """Our own chains in each mode, beside torch's loader and DALI."""
    return photo_jobs("main", chosen, chosen.named(MAIN))


def defaults_jobs(chosen: Choice) -> list[Job]:
    """As a new user meets the loader, beside each mode by itself. Workers: as many as were asked for, 0 is "auto"."""
    return photo_jobs("defaults", chosen, chosen.named(DEFAULTS))


def rivals_jobs(chosen: Choice) -> list[Job]:
    """Others, each as fast as it could be made, and ours with its defaults."""
    return photo_jobs("rivals", chosen, chosen.named(RIVALS))


def photo_jobs(part: str, chosen: Choice, names: Sequence[str]) -> list[Job]:
    jobs: list[Job] = []
    for model in chosen.models:
        for repeat in range(chosen.repeats):
            base: dict[str, Any] = {"model": model, "batch": chosen.size(model), "repeat": repeat}
            if "limit" in names:  # what is trained on does not depend on how it was prepared
                jobs.append(Job(part=part, **base, subject="limit"))
            jobs += [
                Job(part=part, **base, workload=workload, workers=workers, subject=subject)
                for workers in chosen.workers
                for workload in chosen.workloads
                for subject in turned(names, repeat)
                if subject != "limit"
            ]
    return jobs


def memory_jobs(chosen: Choice) -> list[Job]:
    model = chosen.models[0]
    base: dict[str, Any] = {"part": "memory", "model": model, "workload": chosen.workloads[0]}
    base |= {"workers": chosen.workers[0], "batch": chosen.size(model)}
    jobs = []
    if chosen.wants("fit"):
        jobs += [
            Job(**base, group="fit", subject=name) for name in chosen.named(("limit", "off", "on", "dali"))
        ]
    if chosen.wants("tight"):
        jobs.append(Job(**base, group="tight", subject="on"))
    return jobs


def workers_jobs(chosen: Choice) -> list[Job]:
    base: dict[str, Any] = {"part": "workers", "model": chosen.models[0], "workload": chosen.workloads[0]}
    base |= {"batch": chosen.size(chosen.models[0]), "workers": chosen.crew[0]}
    return [
        Job(**base, subject=name, repeat=repeat)
        for repeat in range(chosen.repeats)
        for name in turned(chosen.named(("on", "off")), repeat)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseGroup:
    """Of the part `reuse`: what is compared, on what. `Choice` may name others for all but the group's name."""

    name: str
    model: str
    workloads: tuple[str, ...]
    workers: tuple[int, ...]
    """0: all cores but one."""
    subjects: tuple[str, ...]


REUSE_GROUPS = (
    ReuseGroup(name="paper", model="resnet50", workloads=("W3",), workers=(4,), subjects=("off", "r3")),
    ReuseGroup(
        name="workers", model="resnet50", workloads=("W3",), workers=CPU_GPU_RATIOS, subjects=("off", "r3")
    ),
    ReuseGroup(
        name="lane",
        model="resnet18",
        workloads=("W1", "W3"),
        workers=(0,),
        subjects=("on", "r3", "r3_on", "r3_on_auto", "device3", "device3_auto"),
    ),
)


def reuse_jobs(chosen: Choice) -> list[Job]:
    groups = [group for group in REUSE_GROUPS if chosen.wants(group.name)]
    jobs: list[Job] = []
    for repeat in range(chosen.repeats):
        for model in dict.fromkeys(model for group in groups for model in chosen.models or [group.model]):
            base: dict[str, Any] = {"part": "reuse", "model": model, "batch": chosen.size(model)}
            jobs.append(Job(**base, subject="limit", repeat=repeat))
            jobs += [
                Job(
                    **base, group=group.name, workload=workload, workers=count, subject=subject, repeat=repeat
                )
                for group in groups
                if model in (chosen.models or [group.model])
                for workload in chosen.workloads or group.workloads
                for count in chosen.workers or [each or chosen.cores - 1 for each in group.workers]
                for subject in turned(chosen.named(group.subjects), repeat)
                if subject != "limit"
            ]
    return jobs


PARTS = {
    "main": main_jobs,
    "defaults": defaults_jobs,
    "rivals": rivals_jobs,
    "memory": memory_jobs,
    "workers": workers_jobs,
    "reuse": reuse_jobs,
}


def expected_s(job: Job, chosen: Choice) -> float:
    """About how long it will take."""
    subject = SUBJECTS[job.subject]
    start = START_S[subject.kind]
    if job.group == "fit":
        return 9 * (2.0 if job.subject == "limit" else FIT_TRIAL_S)
    if job.group == "tight":
        return chosen.steps * job.batch / 8000 + 25
    if job.part == "workers":
        return start + chosen.warmup + chosen.period * len(chosen.crew)
    slow = 1.5 if subject.bursts else 1.0  # whole rounds
    epochs = 1 + subject.reuse["times"] * bool(subject.lane) if subject.reuse else 0  # see `_gpu_reuse.reuse`
    filling = epochs * chosen.samples / FILLED_PER_S
    return start + filling + chosen.warmup + chosen.seconds * slow


def estimate_s(jobs: Sequence[Job], chosen: Choice) -> float:
    return MODEL_S * len({job.model for job in jobs}) + sum(expected_s(job, chosen) for job in jobs)
