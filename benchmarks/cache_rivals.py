"""Photos from a store, ours beside MosaicML Streaming, LitData and torch's DataLoader: scripts/bench cache_rivals [--data DIR|TAR] [--peers all]

One store serves all, with a delay, and counts. Each reads the same photos in its own format (ours: tar shards, and single objects), in shuffled order, with
as many workers, the same decoder and transforms, and the same limit for its cache: ours in memory, theirs on disk, whose pages stay in memory too. Each
measurement has a fresh process, a fresh cache and, for peers, an environment of its own under .cache/peers. *Cold* is the first epoch, *warm* the mean of
those after it; time counts from an epoch's first batch to its last. *Served* is what the store sent in an epoch / bytes of all photos. LitData shuffles
within some shards at a time, so does Streaming *in blocks* of a quarter of its cache; by default it shuffles over as many samples as these are, as ours does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _prepare_envs
from _group import Row
from _prepare_envs import Environment
from _rows import Rows, met, options_of, progress, spread, table
from _store_control import Store
from cache_store import fresh, photos_in

HERE = Path(__file__).resolve().parent
FORMAT_S = 1800.0
SHARDS = 32
"""At least: Streaming wants room for four in its cache."""
MOST_SHARD = 16 << 20
BUCKET = "photos"
AWS = (
    "boto3==1.44.3",
    "botocore==1.44.3",
    "s3transfer==0.19.3",
    "jmespath==1.1.0",
    "python-dateutil==2.9.0.post0",
    "six==1.17.0",
)
# Without their dependencies: these would bring a build of torch for CUDA, gigabytes of it, and other versions of what all share.
ENVIRONMENTS = {
    "streaming": Environment(
        name="streaming",
        packages=(
            "--no-deps",
            "mosaicml-streaming==0.13.0",
            *AWS,
            *(
                "brotli",
                "catalogue==2.0.10",
                "cramjam",
                "python-snappy",
                "torchvision==0.28.0",
                "xxhash",
                "zstd",
            ),
        ),
        imports="import boto3",
    ),
    "litdata": Environment(
        name="litdata",
        packages=("--no-deps", "litdata==0.2.76", *AWS, "obstore", "tifffile"),
        imports="import litdata",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    title: str
    function: str
    """Of `_cache_subjects`."""
    form: str
    """Of `_cache_formats`; "": single objects."""
    environment: str = ""
    cached: bool = True

    @property
    def python(self) -> str:
        return str(ENVIRONMENTS[self.environment].python) if self.environment else sys.executable


SUBJECTS = {
    "ours": Subject(title="ours, tar", function="ours", form="tar"),
    "objects": Subject(title="ours, objects", function="ours", form=""),
    "streaming": Subject(
        title="MosaicML Streaming", function="streaming", form="mds", environment="streaming"
    ),
    "blocks": Subject(
        title="MosaicML Streaming, in blocks",
        function="streaming_blocks",
        form="mds",
        environment="streaming",
    ),
    "litdata": Subject(title="LitData", function="litdata", form="litdata", environment="litdata"),
    "torch": Subject(title="torch, tar", function="torch_same", form="tar", cached=False),
}


def chosen(options: Any) -> tuple[list[str], list[str]]:
    """Who takes part, and why the others do not."""
    names, absent = [], []
    for name in options.subjects.split(","):
        env = ENVIRONMENTS.get(SUBJECTS[name].environment)
        if env is not None and options.peers == "none":
            continue
        if env is not None and options.peers == "installed" and not _prepare_envs.installed(env):
            absent.append(f"{SUBJECTS[name].title} is not installed here: --peers all installs it")
        elif env is not None and (reason := _prepare_envs.make(env, progress)):
            absent.append(f"{SUBJECTS[name].title} does not install here: {reason}")
        else:
            names.append(name)
    return names, absent


def write(subject: Subject, photos: Path, folder: Path, shard_bytes: int) -> None:
    """Write the photos in a subject's format into the bucket."""
    out = folder / BUCKET / subject.form
    if not subject.form or out.exists():
        return
    progress(f"writing {subject.form}")
    command = [subject.python, str(HERE / "_cache_formats.py"), subject.form, str(photos), str(out)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)])}
    done = subprocess.run(
        [*command, str(shard_bytes)],
        capture_output=True,
        text=True,
        timeout=FORMAT_S,
        check=False,
        env=environ,
    )
    if done.returncode:
        raise SystemExit(f"{subject.form} could not be written:\n{done.stderr[-2000:]}")


def where_of(subject: Subject, folder: Path) -> str:
    if not subject.form:
        return f"s3://{BUCKET}/train"
    if subject.form != "tar":
        return f"s3://{BUCKET}"
    last = len(list((folder / BUCKET / "tar").glob("*.tar"))) - 1
    return f"s3://{BUCKET}/tar/{{0000..{last:04}}}.tar"


def main() -> int:
    parser = options_of(__doc__, "cache_rivals", repeats=3, kept="cache/rivals.jsonl")
    parser.add_argument("--data", metavar="DIR|TAR", help="photos; without it, generated ones")
    parser.add_argument("--photos", type=int, help="how many of them (1000; 200 with --quick)")
    parser.add_argument("--copies", type=int, help="of each photo, in an epoch (4; 2 with --quick)")
    parser.add_argument("--subjects", default=",".join(SUBJECTS), help=f"({','.join(SUBJECTS)})")
    parser.add_argument(
        "--peers",
        default="installed",
        choices=("none", "installed", "all"),
        help="'all': peers that are missing are installed",
    )
    parser.add_argument("--share", type=float, default=0.5, help="of the data that each may cache (0.5)")
    parser.add_argument("--batch", type=int, default=32, help="(32)")
    parser.add_argument("--workers", type=int, default=2, help="(2)")
    parser.add_argument("--epochs", type=int, default=3, help="(3)")
    parser.add_argument("--latency-ms", type=float, default=30.0, help="of the store (30)")
    parser.add_argument("--mb-per-s", type=float, default=0.0, help="of the store; 0: no limit (0)")
    options = parser.parse_args()
    rows = Rows(options)
    names, absent = chosen(options)
    with tempfile.TemporaryDirectory(prefix="penstock-objects-") as held:
        folder = Path(held) / "objects"
        count = options.photos or (200 if options.quick else 1000)
        copies = options.copies or (2 if options.quick else 4)
        photos = photos_in(folder, options.data, copies, count) / "all"
        data = sum(path.stat().st_size for path in photos.iterdir())
        shard_bytes = min(MOST_SHARD, data // SHARDS)
        for name in names:
            write(SUBJECTS[name], photos, folder, shard_bytes)
        with Store(folder) as store:
            os.environ.update(store.environ)
            local = Path(held) / "local"
            common = {"batch": options.batch, "workers": options.workers, "control": store.control}
            if "tar" in {SUBJECTS[name].form for name in names}:  # others' formats have their index with them
                where = where_of(SUBJECTS["ours"], folder)
                fresh("ours", {**common, "where": where, "epochs": 0, "local": str(local / "tar")}, store)
            store.set(latency_ms=options.latency_ms, mb_per_s=options.mb_per_s)

            def one(name: str) -> Row:
                subject = SUBJECTS[name]
                params = {**common, "where": where_of(subject, folder), "epochs": options.epochs}
                params["local"] = str(local / (subject.form or "objects"))
                params["cache_bytes"] = round(options.share * data) if subject.cached else 0
                found = fresh(subject.function, params, store, python=subject.python)
                return {**found, **{f"{e}_served": found[f"{e}_served"] / data for e in ("cold", "warm")}}

            rows.expect(rows.repeats * len(names))
            for number in range(rows.repeats):
                for name in names if number % 2 == 0 else names[::-1]:
                    rows.measure({"subject": name, "round": number}, partial(one, name))
    report(rows, names, options)
    for line in absent:
        print(line)
    return rows.close()


def report(rows: Rows, names: Sequence[str], options: Any) -> None:
    for epoch in ("cold", "warm"):
        title = f"{epoch}, {options.workers} workers, answers in {options.latency_ms:g} ms, cache {options.share:g}"
        header = [title, "photos/s", "first batch, s", "served", "ours by it", "goal", "met"]
        lines = []
        for name in names:
            figures = [
                spread(rows.values(f"{epoch}_{figure}", subject=name))
                for figure in ("per_s", "first_batch_s")
            ]
            served = spread(rows.values(f"{epoch}_served", subject=name))
            ratios = rows.ratios(f"{epoch}_per_s", {"subject": "ours"}, {"subject": name})
            judged = met(ratios, lambda ratio: ratio > 1) if SUBJECTS[name].environment else ""
            lines.append(
                [SUBJECTS[name].title, *figures, served, spread(ratios), "> 1x" if judged else "", judged]
            )
        print(table(header, lines), end="\n\n")


if __name__ == "__main__":
    sys.exit(main())
