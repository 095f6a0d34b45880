"""Rates from an object store, beside torch's DataLoader, local files, and a plain TCP stream: scripts/bench cache_store [--part workers,cores,link]

workers  the store answers in 30 ms, and two workers read the first epoch, samples that cost nothing to prepare: ours, and torch's loader over the same
         dataset and over a dataset that opens a URL for each sample. Goal: ours >= 10 x the best of torch's.
cores    photos from the store and from local files, the server pinned to cores of its own. Goal on 16 cores: store >= 0.9 x files.
link     one emulated machine whose link to the store is limited by tbf; epochs after the first, with caches of several sizes, over the rate of a plain TCP
         stream on the same link in the same round. Goal: >= 0.97 x stream / (1 - c), c being the share held without the ring.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import _prepare_data
from _cache_samples import BUCKET, FOLDER, make, total_bytes
from _group import Group, Row
from _harness import Case, FreshProcess
from _machine import cores, cpu_clocks
from _rows import Rows, met, options_of, progress, spread, table
from _store_control import Store

HERE = Path(__file__).resolve().parent
LIMIT_S = 600.0
PARTS = ("workers", "cores", "link")
SUBJECTS = {
    "ours, s3": ("ours", "s3", True),
    "ours, http": ("ours", "http", True),
    "ours, no cache, s3": ("ours", "s3", False),
    "ours, no cache, http": ("ours", "http", False),
    "torch, same dataset, s3": ("torch_same", "s3", False),
    "torch, same dataset, http": ("torch_same", "http", False),
    "torch, urlopen": ("torch_blocking", "http", False),
}
"""Name in the table: function of `_cache_subjects`, how the store is asked, whether with a cache."""
LARGE_BYTES = 256 << 20
"""Of the object that the plain stream reads, over and over."""


def fresh(subject: str, params: Row, store: Store, python: str = sys.executable) -> Row:
    """Measure in a fresh process. The store's own CPU time is none of others'."""
    run = FreshProcess(HERE / "_cache_measure.py", {subject: f"{python}::{subject}"}, LIMIT_S)
    began_s, clock_s = time.monotonic(), cpu_clocks([store.process.pid]).get(store.process.pid, 0.0)
    outcome = run(Case(name=subject, measure="epochs", params=params), subject)
    if outcome.figures is None:
        raise RuntimeError(outcome.error)
    used_s = cpu_clocks([store.process.pid]).get(store.process.pid, 0.0) - clock_s
    share = used_s / (time.monotonic() - began_s) / cores()
    return {**outcome.figures, "others_cpu_share": max(0.0, outcome.others_cpu_share - share)}


def turns(rows: Rows, names: list[str], part: str, how: Callable[[str], Row], **facts: Any) -> None:
    rows.expect(rows.repeats * len(names))
    for number in range(rows.repeats):
        for name in names if number % 2 == 0 else names[::-1]:
            rows.measure({"part": part, "subject": name, "round": number, **facts}, partial(how, name))


def workers(rows: Rows, options: Any, folder: Path) -> str:
    samples, mean = options.samples or (2000 if options.quick else 6000), 1000 * options.kb
    data = make(folder, samples, mean)
    with Store(folder, latency_ms=options.latency_ms) as store:
        os.environ.update(store.environ)
        where = {"s3": f"s3://{BUCKET}/{FOLDER}", "http": f"{store.url}/{BUCKET}/{FOLDER}"}

        def one(name: str) -> Row:
            function, kind, cached = SUBJECTS[name]
            params = {"where": where[kind], "samples": samples, "mean": mean, "batch": options.batch}
            params |= {"workers": options.workers, "seconds": options.seconds, "control": store.control}
            return fresh(function, {**params, "cache_bytes": 2 * data if cached else 0}, store)

        turns(rows, list(SUBJECTS), "workers", one)
    lines, best = [], {"ours": "ours, s3", "torch": "torch, same dataset, http"}
    peers = [name for name in SUBJECTS if name.startswith("torch")]
    best["torch"] = max(
        peers, key=lambda name: statistics.median(rows.values("cold_per_s", subject=name) or [0])
    )
    for name in SUBJECTS:
        ratios = rows.ratios("cold_per_s", {"subject": name}, {"subject": best["torch"]})
        judged = met(ratios, lambda ratio: ratio >= 10) if name in ("ours, s3", "ours, http") else ""
        figures = [
            spread(rows.values(f"cold_{figure}", subject=name)) for figure in ("per_s", "first_batch_s")
        ]
        lines.append([name, *figures, spread(ratios), "≥ 10x" if judged else "", judged])
    title = f"{options.workers} workers, {options.kb} KB, answers in {options.latency_ms:g} ms, first epoch"
    return table([title, "samples/s", "first batch, s", "by torch's best", "goal", "met"], lines)


def photos_in(folder: Path, data: str | None, copies: int, count: int | None) -> Path:
    """Put photos into a bucket, each several times by another name, so that an epoch takes a while; return their folder."""
    root = _prepare_data.photos(data, count, progress) / "photos"
    where = folder / "photos" / "train" / "all"
    where.mkdir(parents=True)
    for copy in range(copies):
        for path in root.iterdir():
            (where / f"{copy:03}-{path.name}").symlink_to(path.resolve())
    return where.parent


def on_cores(rows: Rows, options: Any, folder: Path) -> str:
    mine = sorted(os.sched_getaffinity(0))
    server = mine[-options.server_cores :] if len(mine) > options.server_cores else mine
    rest = mine[: -options.server_cores] if len(mine) > options.server_cores else mine
    count = options.photos or (200 if options.quick else 1000)
    local = photos_in(folder, options.data, 2 if options.quick else options.copies, count)
    photos = sum(1 for _ in (local / "all").iterdir())
    with Store(folder, cores=server, latency_ms=options.latency_ms) as store:
        os.environ.update(store.environ)
        where = {"files": str(local), "store": "s3://photos/train"}

        def one(name: str) -> Row:
            params = {"where": where[name], "batch": 64, "workers": options.many or len(rest), "cores": rest}
            params["epochs"] = 2
            room = 200_000 * photos if name == "store" else 0
            return fresh("ours", {**params, "cache_bytes": room, "control": store.control}, store)

        turns(rows, list(where), "cores", one, cores=len(mine))
    lines: list[list[str]] = []
    for epoch, which in (("cold", "first epoch"), ("warm", "later")):
        lines += [
            [f"{name}, {which}", spread(rows.values(f"{epoch}_per_s", subject=name)), "", "", ""]
            for name in where
        ]
        ratios = rows.ratios(f"{epoch}_per_s", {"subject": "store"}, {"subject": "files"})
        judged = met(ratios, lambda ratio: ratio >= 0.9)
        judged = judged if len(mine) >= 16 else f"{judged}, on {len(mine)} cores"
        lines[-1][2:] = [spread(ratios), "≥ 0.9x", judged]
    title = f"{photos:,} photos, {len(rest)} cores, the server on {len(server)}"
    return table([title, "samples/s", "by files", "goal", "met"], lines)


def link(rows: Rows, options: Any, folder: Path) -> str:
    samples, mean = options.samples or (2000 if options.quick else 6000), 1000 * options.kb
    make(folder, samples, mean)
    data = total_bytes(samples, mean)
    with (folder / BUCKET / "large").open("wb") as file:
        file.truncate(LARGE_BYTES)
    spec = {"samples": samples, "mean": mean, "batch": min(8, options.batch), "epochs": 3}
    spec["workers"] = options.workers
    names = ["stream", *(f"c = {share}" for share in options.shares.split(","))]
    with Group(1, 1, folder) as group:
        if not group.is_emulated:
            return f"link: not measured: {group.why_not}"
        group.limit(0, options.rate)

        def one(name: str) -> Row:
            if name == "stream":
                (lines,) = group.run(
                    HERE / "_cache_rank.py", {**spec, "stream_s": options.seconds}, limit_s=LIMIT_S
                )
                return {"bytes_per_s": lines[-1]["bytes_per_s"], "held": 0.0}
            cache = {"memory": round(float(name[4:]) * data)}
            (lines,) = group.run(HERE / "_cache_rank.py", {**spec, "cache": cache}, limit_s=LIMIT_S)
            warm = [row for row in lines if row["at"] == "epoch"][1:]
            found = warm[-1]["cache"] or {}
            rate = statistics.fmean(data / (row["seconds"] - row["first_batch_s"]) for row in warm)
            served = statistics.fmean(row["served"] / data for row in warm)
            held = (cache["memory"] - found.get("ring_bytes", 0)) / data
            return {"bytes_per_s": rate, "held": held, "served": served, "cache": found}

        turns(rows, names, "link", one, rate=options.rate)
    lines = []
    plain = {row["round"]: row["bytes_per_s"] for row in rows.of(subject="stream", rate=options.rate)}
    for name in names:
        found = [row for row in rows.of(subject=name, rate=options.rate) if row["round"] in plain]
        ratios = [row["bytes_per_s"] * (1 - row["held"]) / plain[row["round"]] for row in found]
        rate = spread([row["bytes_per_s"] / 1e6 for row in found])
        served = spread([row["served"] for row in found if "served" in row])
        judged = ["", ""] if name == "stream" else ["≥ 0.97", met(ratios, lambda ratio: ratio >= 0.97)]
        lines.append([name, rate, served, spread(ratios), *judged])
    header = [f"link of {options.rate}", "MB/s", "served", "x (1 - c) / stream", "goal", "met"]
    return table(header, lines)


def main() -> int:
    parser = options_of(__doc__, "cache_store", repeats=3, kept="cache/store.jsonl")
    parser.add_argument("--part", default=",".join(PARTS), help=f"({','.join(PARTS)})")
    parser.add_argument("--data", metavar="DIR|TAR", help="photos for `cores`; without it, generated ones")
    parser.add_argument("--photos", type=int, help="how many of them (1000; 200 with --quick)")
    parser.add_argument(
        "--copies", type=int, default=20, help="of each photo, in an epoch (20; 2 with --quick)"
    )
    parser.add_argument("--samples", type=int, help="for `workers` and `link` (6000; 2000 with --quick)")
    parser.add_argument("--kb", type=int, default=110, help="mean size of a sample (110)")
    parser.add_argument("--batch", type=int, default=32, help="(32)")
    parser.add_argument("--workers", type=int, default=2, help="(2)")
    parser.add_argument("--many", type=int, help="workers for `cores`; as many as it has cores")
    parser.add_argument("--server-cores", type=int, default=2, help="the store's own, for `cores` (2)")
    parser.add_argument("--latency-ms", type=float, default=30.0, help="of the store, but for `link` (30)")
    parser.add_argument("--rate", default="400mbit", help="of the link, as tc spells it (400mbit)")
    parser.add_argument("--shares", default="0.25,0.5", help="of the data that caches hold, for `link`")
    parser.add_argument("--seconds", type=float, help="of an epoch or a stream (10; 4 with --quick)")
    options = parser.parse_args()
    options.seconds = options.seconds or (4.0 if options.quick else 10.0)
    rows, said = Rows(options), []
    for part in options.part.split(","):
        measure = {"workers": workers, "cores": on_cores, "link": link}[part]
        with tempfile.TemporaryDirectory(prefix="penstock-objects-") as folder:
            said.append(measure(rows, options, Path(folder)))
    print("\n\n".join(said))
    print(f"{cores()} cores")
    return rows.close()


if __name__ == "__main__":
    sys.exit(main())
