"""Who feeds the training in `scripts/bench gpu`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Who feeds the training."""

    kind: str
    """`limit` (one batch that stays), `torch`, `timm`, `gpu_ops`, `dali`, `spdl` or `ours`."""
    title: str
    prep: str | Mapping[str, Any] = "off"
    """Ours: the GPU lane's mode, or the fields of a `penstock.GpuPrep`."""
    adopted: bool = False
    """Ours: torchvision's `ImageFolder` and v2 transforms, and no keyword but the device, the workers and, unless it is "auto", the mode."""
    tuned: Mapping[str, Any] = field(default_factory=dict)
    """DALI: see `_gpu_dali`; SPDL: whether it has processes, see `_gpu_rivals`."""
    auto_workers: bool = False
    """Ours: as many workers as `num_workers="auto"` comes to, whatever others have."""
    reuse: Mapping[str, Any] = field(default_factory=dict)
    """Ours: the fields of a `penstock.Reuse`; none: every sample is prepared anew."""

    remote: int = 0
    """Ours: workers behind TCP connections, as on other machines, beside the local ones."""
    plan: str = "samples"
    """What they do."""

    @property
    def lane(self) -> bool:
        return self.prep != "off"

    @property
    def searches(self) -> bool:
        """Whether the lane's share is still being found while the feed is young."""
        return self.lane and (isinstance(self.prep, str) or self.prep.get("share") is None)

    @property
    def chooses(self) -> bool:
        """Whether the lane's mode is still being found while the feed is young."""
        return self.prep == "auto"

    @property
    def bursts(self) -> bool:
        """Whether batches come in bursts, one from each worker."""
        return self.kind in ("torch", "timm")


HINTED = {"preallocate_width_hint": 1200, "preallocate_height_hint": 1200}
SUBJECTS: Mapping[str, Subject] = {
    "limit": Subject(kind="limit", title="limit: one resident batch"),
    "torch": Subject(kind="torch", title="torch DataLoader, torchvision/PIL"),
    "dali": Subject(kind="dali", title="DALI, GPU decode and augment"),
    **{
        name: Subject(kind="dali", title=f"DALI, {title}", tuned=tuned)
        for name, title, tuned in (
            ("dali_40", "engines 0.40", {"hw_decoder_load": 0.4}),
            ("dali_90", "engines 0.90", {"hw_decoder_load": 0.9}),
            ("dali_hints", "memory ahead", {**HINTED}),
            ("dali_whole", "crop behind the decoder", {**HINTED, "crops": "behind"}),
            (
                "dali_whole_90",
                "crop behind, engines 0.90",
                {**HINTED, "crops": "behind", "hw_decoder_load": 0.9},
            ),
            ("dali_chw", "crop behind, planar", {**HINTED, "crops": "behind", "layout": "CHW"}),
            ("dali_16", "crop behind, 16 threads", {**HINTED, "crops": "behind", "threads": 16}),
        )
    },
    "timm": Subject(kind="timm", title="timm PrefetchLoader, uint8, normalised on the device"),
    "gpu_ops": Subject(kind="gpu_ops", title="torchvision, decoded and augmented on the GPU"),
    "spdl": Subject(kind="spdl", title="SPDL, spdl.io in threads"),
    "spdl_mp": Subject(kind="spdl", title="SPDL, spdl.io in processes", tuned={"processes": True}),
    "off": Subject(kind="ours", title="ours, lane off"),
    "on": Subject(kind="ours", title="ours, lane concurrent", prep="concurrent"),
    "on_auto": Subject(
        kind="ours", title="ours, lane concurrent, workers auto", prep="concurrent", auto_workers=True
    ),
    "tv_auto": Subject(kind="ours", title="torchvision dataset, defaults", prep="auto", adopted=True),
    "tv_off": Subject(kind="ours", title="torchvision dataset, lane off", adopted=True),
    "tv_on": Subject(
        kind="ours", title="torchvision dataset, lane concurrent", prep="concurrent", adopted=True
    ),
    "tv_idle": Subject(kind="ours", title="torchvision dataset, lane idle", prep="idle", adopted=True),
    "idle": Subject(kind="ours", title="ours, lane in idle time", prep="idle"),
    "far": Subject(kind="ours", title="ours, and 11 remote workers, lane off", remote=11),
    "far_cut": Subject(
        kind="ours", title="ours, and 11 remote workers, cut, lane off", remote=11, plan="cut"
    ),
    "far_on": Subject(
        kind="ours", title="ours, and 11 remote workers, lane concurrent", remote=11, prep="concurrent"
    ),
    "r3": Subject(kind="ours", title="used 3 times, lane off", reuse={"times": 3}),
    "r3_on": Subject(
        kind="ours", title="used 3 times, lane concurrent", prep="concurrent", reuse={"times": 3}
    ),
    "r3_on_auto": Subject(
        kind="ours",
        title="used 3 times, lane concurrent, workers auto",
        prep="concurrent",
        reuse={"times": 3},
        auto_workers=True,
    ),
    "device3": Subject(
        kind="ours",
        title="used 3 times, kept on the device",
        prep="concurrent",
        reuse={"times": 3, "store": "device"},
    ),
    "device3_auto": Subject(
        kind="ours",
        title="used 3 times, kept on the device, workers auto",
        prep="concurrent",
        reuse={"times": 3, "store": "device"},
        auto_workers=True,
    ),
}
