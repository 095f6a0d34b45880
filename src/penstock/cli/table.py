"""Tables as text: any, and that of two measured runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

MIB, GIB = 2**20, 2**30


class Measured(Protocol):
    @property
    def facts(self) -> Mapping[str, float]: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def diagnosis(self) -> str: ...


def aligned(rows: Sequence[Sequence[str]], ways: str) -> list[str]:
    """Columns, each to the left or to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pads: dict[str, Callable[[str, int], str]] = {"<": str.ljust, ">": str.rjust}
    return [
        "  ".join(pads[way](word, width) for word, width, way in zip(row, widths, ways, strict=True)).rstrip()
        for row in rows
    ]


def memory(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def table(torchs: Measured, ours: Measured) -> str:
    """The comparison, and what limits ours."""
    theirs, mine = torchs.facts, ours.facts
    rows = [
        ("", "torch", "penstock", ""),
        (
            "samples/s",
            f"{theirs['samples_per_s']:,.0f}",
            f"{mine['samples_per_s']:,.0f}",
            ratio(mine["samples_per_s"], theirs["samples_per_s"]),
        ),
        ("waiting share", f"{theirs['wait_share']:.0%}", f"{mine['wait_share']:.0%}", ""),
        (
            "peak memory (PSS)",
            memory(torchs.peak_bytes),
            memory(ours.peak_bytes),
            ratio(ours.peak_bytes, torchs.peak_bytes),
        ),
        ("first batch after", f"{theirs['first_batch_s']:.2f} s", f"{mine['first_batch_s']:.2f} s", ""),
        ("batches", f"{theirs['batches']:.0f}", f"{mine['batches']:.0f}", ""),
    ]
    return "\n".join(
        [*aligned(rows, "<>>>"), *([f"\nwith penstock, {ours.diagnosis}"] if ours.diagnosis else [])]
    )


def ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}x" if other else ""
