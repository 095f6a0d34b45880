"""Who is prepared anew, and when: scripts/bench reuse_policies [--samples 50000] [--times 3] [--batch 128] [--epochs 13] ...

Revamper's Figures 7 and 8, computed: misses per epoch, misses per batch, and the work of each batch over time, for

  ours          balanced eviction and cache-aware shuffle: the plans that loaders run (penstock.plan)
  plain order   balanced eviction, and a plain shuffle
  naive         reference counting (whatever was used `times` times is made anew), and a plain shuffle

Work is final + partial for what is made anew, final for the rest; by default W3's, in ms per sample as `penstock reuse plan` measured them
(docs/reuse.md, split 1). Waiting is that of a training step which takes as long as a batch on average, beside workers that are up to so many
batches ahead (--ahead): a model, to say what uneven work costs. No data is read. Output: a table, and with --out a JSON file and a picture.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
for place in (ROOT / "src", Path(__file__).resolve().parent):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

from _reuse_plots import policies_picture  # noqa: E402

from penstock.plan.epoch import EpochPlan  # noqa: E402

SUBJECTS = ("ours", "plain order", "naive")
Misses = list[NDArray[np.int64]]
"""Of each epoch, those of its batches."""


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--samples", type=int, default=50_000)
    add("--times", type=int, default=3, help="uses of each kept sample")
    add("--batch", type=int, default=128)
    add("--epochs", type=int, default=13, help="the first, in which all is made anew, and then whole rounds")
    add("--partial-ms", type=float, default=4.784, help="to make what is kept of a sample")
    add("--final-ms", type=float, default=1.500, help="to finish it, each time")
    add("--ahead", type=int, nargs="+", default=[1, 4], help="batches that workers may be ahead of training")
    add("--seed", type=int, default=0)
    add("--out", type=Path, help="a folder: policies.json and policies.svg are written there")
    return parser.parse_args(arguments)


# ---- policies


class ReferenceCount:
    """What a sample that was made anew may still be used for; at 0 it is made anew. The paper's comparator."""

    def __init__(self, samples: int, times: int) -> None:
        self.left, self.times = np.zeros(samples, np.int64), times

    def missed(self) -> NDArray[np.bool_]:
        """Of an epoch, in which every sample is used once."""
        gone = self.left == 0
        self.left[gone] = self.times
        self.left -= 1
        return gone


def misses(subject: str, args: argparse.Namespace) -> Misses:
    """Misses of each batch of each epoch."""
    counted, found = ReferenceCount(args.samples, args.times), []
    for epoch in range(args.epochs):
        kept = plan_of(args, epoch, args.times)
        order = kept if subject == "ours" else plan_of(args, epoch, 1)
        if subject == "naive":
            missed = counted.missed()
        else:
            missed = kept.renewal.renewed(np.arange(args.samples), epoch) == epoch
        batches = (order.keys(order.positions(batch)) for batch in range(order.batches))
        found.append(np.array([np.count_nonzero(missed[keys]) for keys in batches]))
    return found


def plan_of(args: argparse.Namespace, epoch: int, times: int) -> EpochPlan:
    return EpochPlan(
        length=args.samples,
        batch_size=args.batch,
        drop_last=False,
        shuffle=True,
        seed=args.seed,
        epoch=epoch,
        times=times,
        kept=args.samples if times > 1 else 0,
    )


# ---- what they come to


def work_ms(found: Misses, args: argparse.Namespace) -> NDArray[np.float64]:
    """Of every batch behind the first epoch, in which all is made anew; full ones only."""
    every = np.concatenate([batches[: args.samples // args.batch] for batches in found[1:]])
    return args.batch * args.final_ms + every * args.partial_ms


def waited(work: NDArray[np.float64], ahead: int) -> float:
    """Share of the time that training waits for batches, where a step takes as long as the average batch: workers prepare one batch after
    the other, as soon as there is a place for it."""
    step, ready, waiting = float(work.mean()), 0.0, 0.0
    places = ahead + 1  # one is that of the batch which is trained on
    ended = [0.0] * places
    for number, cost in enumerate(work.tolist()):
        ready = max(ready, ended[number % places]) + cost
        before = ended[(number - 1) % places]
        begin = max(ready, before)
        waiting += begin - before
        ended[number % places] = begin + step
    return waiting / max(ended)


def summary(found: Misses, args: argparse.Namespace) -> dict[str, Any]:
    work = work_ms(found, args)
    full = [batches[: args.samples // args.batch] for batches in found[1:]]
    each = np.concatenate(full)
    return {
        "misses_per_epoch": [int(batches.sum()) for batches in found],
        "misses_per_batch": {"least": int(each.min()), "most": int(each.max()), "std": float(each.std())},
        "misses_in_the_last_epoch": full[-1].tolist(),
        "work_ms_per_batch": {
            "mean": float(work.mean()),
            "std_within_epochs": float(np.mean([args.partial_ms * batches.std() for batches in full])),
            "std": float(work.std()),
        },
        "waits": {str(ahead): waited(work, ahead) for ahead in args.ahead},
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [f"{'':<12} {'misses per epoch':>20} {'per batch':>12} {'work per batch, ms':>22}  waits"]
    for name, row in rows.items():
        later, batch, work = row["misses_per_epoch"][1:], row["misses_per_batch"], row["work_ms_per_batch"]
        cells = [
            f"{min(later):,} to {max(later):,}",
            f"{batch['least']} to {batch['most']}",
            f"{work['mean']:,.0f} ± {work['std']:,.1f}",
            ", ".join(f"{share:.1%} ({ahead} ahead)" for ahead, share in row["waits"].items()),
        ]
        lines.append(f"{name:<12} {cells[0]:>20} {cells[1]:>12} {cells[2]:>22}  {cells[3]}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    args = parsed(arguments)
    if (
        args.times < 2
        or args.epochs <= args.times
        or (args.epochs - 1) % args.times
        or args.batch > args.samples
    ):
        raise SystemExit("give 1 + a multiple of --times epochs, and batches no larger than the data set")
    found = {subject: misses(subject, args) for subject in SUBJECTS}
    rows = {subject: summary(each, args) for subject, each in found.items()}
    print(table(rows))
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        said = {name: value for name, value in vars(args).items() if name != "out"}
        (args.out / "policies.json").write_text(json.dumps({"arguments": said, "subjects": rows}) + "\n")
        shown = (args.times + 1) * (args.samples // args.batch)
        work = {subject: (work_ms(each, args)[:shown] / 1e3).tolist() for subject, each in found.items()}
        (args.out / "policies.svg").write_text(policies_picture(rows, work, args.times) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
