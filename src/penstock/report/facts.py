"""The numbers of `loader.stats()` for people: a label, a value, its unit.

Facts that do not apply (no GPU, no reuse, memory of ended processes) are left out. A number without a label is shown under its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.report.svg import in_bytes, in_time, thousands

LABELS = {
    "Delivered": {
        "batches": "batches",
        "samples": "samples",
        "epoch": "epoch, counted from 0",
        "elapsed_s": "time in epochs",
        "wait_s": "training waited",
        "wait_share": "share of time waited",
    },
    "Workers": {
        "workers": "workers",
        "worker_busy_s": "busy, each worker",
        "worker_cpu_s": "on a core, each worker",
        "worker_delayed_s": "waiting for a core, each worker",
        "prepare": "preparing samples, together",
        "write": "writing them into batches",
        "collate": "collating",
        "tasks": "tasks",
        "task_size": "samples in a task",
    },
    "Memory": {
        "arena_bytes": "for batches, now",
        "arena_limit_bytes": "for batches, at most",
        "held_bytes": "in batches that training holds",
        "private_copies": "batches copied, since training held many",
        "sample_bytes": "a prepared sample",
    },
    "Faults": {
        "restarts": "workers replaced",
        "reissued": "tasks given out again",
        "agent_restarts": "scheduling process replaced",
        "skipped": "samples left out",
        "source_retries": "reads tried again",
    },
}
LEFT_OUT = frozenset({"engine", "worker_pids", "agent_pid", "worker_s", "ready_depth", "warnings", "recent"})
"""Facts of a running process, or inputs of other facts; the diagnosis covers `recent`."""
UNITS = ("_share", "_bytes", "_s")


def facts(stats: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return headings, each with labels and values."""
    values = {**stats, **(stats.get("stages_s") or {})}
    found: dict[str, dict[str, str]] = {}
    for heading, labels in LABELS.items():
        shown = {
            label: written("_s" if name in (stats.get("stages_s") or {}) else name, values[name])
            for name, label in labels.items()
            if applies(values.get(name)) and (values[name] or heading != "Memory")
        }
        if shown:
            found[heading] = shown
    if ranks := ranks_in_words(stats.get("node")):
        found["Ranks of this machine"] = ranks
    known = {name for labels in LABELS.values() for name in labels} | LEFT_OUT | {"stages_s", "node"}
    for name, value in stats.items():
        if name in known or not applies(value):
            continue
        if isinstance(value, Mapping):
            shown = {in_words(key): written(key, part) for key, part in value.items() if applies(part)}
            if shown:
                found[heading_of(name)] = shown
        else:
            found.setdefault("Further", {})[in_words(name)] = written(name, value)
    return found


def ranks_in_words(node: Mapping[str, Any] | None) -> dict[str, str]:
    """Return a line for each loader that shares this machine's cores."""
    if not node:
        return {}
    lines = {"cores": str(node["cores"]), "cores that came or went": str(node["moves"])}
    for number, one in enumerate(node["loaders"]):
        moved = [
            f"{way} {in_time(one[key])} of a core"
            for way, key in (("lent", "lent_s"), ("borrowed", "borrowed_s"))
            if one[key]
        ]
        waits = f"training waited {in_time(one['waited_s'])}"
        has = f"uses {one['allowed']} cores, {one['workers']} of its own"
        lines[f"rank {one['rank']}, loader {number}"] = ", ".join([has, *moved, waits])
    if last := node.get("slowest"):
        lines["slowest"] = f"rank {last['rank']}: the others wait {last['share']:.0%} of the time for it"
    return lines


def applies(value: Any) -> bool:
    return value is not None and value not in ("", [], {}, ())


def heading_of(name: str) -> str:
    words = in_words(name)
    return "GPU" if words == "gpu" else words[0].upper() + words[1:]


def in_words(name: str) -> str:
    """Return a key as words, without its unit."""
    for unit in UNITS:
        name = name.removesuffix(unit)
    return str(name).replace("_", " ")


def written(name: str, value: Any) -> str:
    """Return a value as people write it; its name carries the unit."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{in_words(key)} {written(name, part)}" for key, part in value.items() if applies(part)
        )
    if isinstance(value, (list, tuple)):
        return ", ".join(written(name, part) for part in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    if name.endswith("_s"):
        return in_time(value)
    if name.endswith("_share"):
        return f"{value:.1%}"
    if name.endswith("_bytes"):
        return in_bytes(value)
    return thousands(value) if value == int(value) else f"{value:.3g}"
