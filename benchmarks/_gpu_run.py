"""Makes one measurement after the other, in one process: a model stays as long as it is needed."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import time
import traceback
from typing import Any

import torch
from _gpu_chains import photo_files
from _gpu_feeds import WARM_BYTES, Ground, drop_from_memory
from _gpu_measure import Training, throughput
from _gpu_memory import memory
from _gpu_plan import Choice, Job, expected_s
from _gpu_reuse import reuse
from _gpu_workers import workers

PATIENCE, LEAST_PATIENCE_S, STARTING_S = 3.0, 60.0, 30.0
"""A measurement that takes so many times what was expected hangs: the process then says where, and ends. Kernels may have to be
compiled first."""
SHOWN = "images_per_s mode workers_at_end warmup_s lane_share wait_p50_ms wait_p99_ms cpu_s_per_1000 largest_batch num_device_alloc error"
FRAMES = 6


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.ground = Ground(
            device=args.device,
            data=args.data,
            generated=args.generate,
            cold=args.cold,
            samples=args.samples,
        )
        self._training: Training | None = None
        if self.ground.device == "cpu":
            torch.set_num_threads(1)  # the other cores are the workers'
        self._gpu = "none" if self.ground.device == "cpu" else torch.cuda.get_device_name()
        self._prepared = self._prepare_photos()

    def _prepare_photos(self) -> str:
        """In memory, or out of it, before anything is measured; what is wrong with that."""
        files = photo_files(self.ground.root)
        if not self.ground.cold:
            for name in files:
                with open(name, "rb") as file:  # noqa: PTH123 - thousands of them
                    while file.read(1 << 20):
                        pass
            return ""
        few = drop_from_memory(files) < WARM_BYTES
        return "so few photos are in memory again after their first reading" if few else ""

    def training(self, model: str) -> Training:
        """The model; one at a time is on the device."""
        if self._training is None or self._training.name != model:
            self._training = None
            self._clean()
            self._training = Training(model, self.ground.device)
        return self._training

    def made(self, job: Job, chosen: Choice) -> dict[str, Any]:
        """The figures, or the error; a hang ends the process."""
        limit = max(LEAST_PATIENCE_S, PATIENCE * expected_s(job, chosen)) + STARTING_S
        faulthandler.dump_traceback_later(limit, exit=True)
        began = time.time()
        try:
            found = self._figures(job, chosen)
        except Exception as error:  # noqa: BLE001 - the campaign goes on
            found = {"error": described(error)}
            traceback.print_exc()
            self._training = None  # whatever state it is in
        finally:
            faulthandler.cancel_dump_traceback_later()
        self._clean()
        note = {"note": self._prepared} if self._prepared else {}
        storage = "disk" if self.ground.cold else "memory"
        where = {"from": storage, "gpu": self._gpu}
        return {**found, "took_s": round(time.time() - began, 1), **where, **note}

    def _figures(self, job: Job, chosen: Choice) -> dict[str, Any]:
        training = self.training(job.model)
        match job.part:
            case "memory":
                return memory(job, training, self.ground, chosen)
            case "workers":
                return workers(job, training, self.ground, chosen)
            case "reuse":
                return reuse(job, training, self.ground, chosen)
        return throughput(job, training, self.ground, chosen)

    def _clean(self) -> None:
        gc.collect()
        if self.ground.device != "cpu" and self.usable():
            torch.cuda.empty_cache()

    def usable(self) -> bool:
        """Whether the device still answers: after an illegal access, nothing in this process can use it any more."""
        if self.ground.device == "cpu":
            return True
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    @staticmethod
    def said(found: dict[str, Any]) -> str:
        shown = {name: found[name] for name in SHOWN.split() if name in found}
        return json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in shown.items()})


def described(error: BaseException) -> str:
    """Its last words, and where they were spoken."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__}: {str(error)[:400]} ({where})"
