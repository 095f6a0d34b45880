"""What reuse costs in accuracy: scripts/bench reuse_accuracy --data cifar10.tar.xz|FOLDER --out rows.jsonl ...

CIFAR-10 with two layers of RandAugment, then a random crop and a flip, prepared by our loader, as Revamper has it (sections 7.1 and 7.4):
standard: nothing is kept. r2, r3: what both layers make is used 2 or 3 times, where `split="auto"` puts the split. echo3: everything is
kept, and used 3 times as it is (data echoing). simplified: crop and flip alone; one_layer: and one layer. plain3: as r3, in a plain shuffle.

For each seed all variants have the same first weights, rates and number of steps: what counts are the differences within a seed. The seeds of
a variant are trained side by side, and all networks of a seed on the same batches. Each training is a line of JSON in --out, and is not made
again; one that --stop-after ends goes on where it was, as long as --work is there. Networks: see _cifar_networks.py.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for place in (ROOT / "src", Path(__file__).resolve().parent):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

import _machine  # noqa: E402
import torch  # noqa: E402
from _cifar_arrays import Arrays, arrays_of  # noqa: E402
from _cifar_networks import NETWORKS, Slot  # noqa: E402
from _paired import rates_of  # noqa: E402
from _reuse_results import Row, append_row, drawn, key_of, read_rows, table  # noqa: E402
from _reuse_variants import DEFAULT, VARIANTS, Settings, loader_of, split_of  # noqa: E402

LOOKED_AT = 1000
"""Test images at a time."""


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Training:
    """One seed of a variant, in a slot: all networks on the same batches."""

    def __init__(self, slot: Slot, loader: Any, variant: str, seed: int) -> None:
        self.slot, self.loader, self.variant, self.seed = slot, loader, variant, seed
        self.epoch, self.seconds, self.waited_s = 0, 0.0, 0.0
        self.looks: dict[str, list[tuple[int, float]]] = {each.name: [] for each in slot.learners}
        self.losses: dict[str, list[float]] = {each.name: [] for each in slot.learners}

    @property
    def name(self) -> str:
        return f"{self.variant}-{self.seed}"

    def batches(self) -> Iterator[Any]:
        """Of one epoch, as the slot's stream may use them."""
        iterator = iter(self.loader)
        while True:
            asked = time.perf_counter()
            with self.slot.here():
                batch = next(iterator, None)
            self.waited_s += time.perf_counter() - asked
            if batch is None:
                return
            yield batch

    def close(self) -> None:
        """End its workers."""
        if self.loader._iterator is not None:
            self.loader._iterator.close()

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        networks = {each.name: each.state() for each in self.slot.learners}
        kept = {name: getattr(self, name) for name in ("epoch", "seconds", "looks", "losses")}
        return {**kept, "networks": networks}

    def restore(self, state: dict[str, Any]) -> None:
        self.epoch, self.seconds = state["epoch"], state["seconds"]
        self.looks, self.losses = state["looks"], state["losses"]
        for learner in self.slot.learners:
            learner.restore(state["networks"][learner.name])
        self.loader.set_epoch(self.epoch)  # all that it does is a function of the seed and the epoch


class Bench:
    def __init__(self, args: argparse.Namespace, clock: Callable[[], float] = time.monotonic) -> None:
        self.args, self.clock, self.began = args, clock, clock()
        self.settings = settings_of(args)
        self.arrays: Arrays = arrays_of(args.data, args.work, limit=args.limit, say=say)
        if len(self.arrays.train) < args.batch:
            raise SystemExit(f"{len(self.arrays.train)} images are less than a batch of {args.batch}")
        torch.backends.cudnn.benchmark = True
        if args.device == "cpu":
            torch.set_num_threads(1)  # the other cores are the workers'
        self.test = self._test()
        self.slots: list[Slot] = []
        self._epoch_s = 0.0

    def _test(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The test images, on the device: they are the same for every training."""
        images = torch.from_numpy(self.arrays.test).permute(0, 3, 1, 2).contiguous().to(self.args.device)
        labels = torch.from_numpy(self.arrays.test_labels).to(self.args.device)
        return list(zip(torch.split(images, LOOKED_AT), torch.split(labels, LOOKED_AT), strict=True))

    def rows(self) -> list[Row]:
        return read_rows(self.args.out, asdict(self.settings))

    def to_do(self) -> list[tuple[str, list[int]]]:
        """Variants, and seeds of each that are trained side by side."""
        done, found, together = {key_of(row) for row in self.rows()}, [], self.args.together
        for variant in self.args.variants:
            seeds = [
                seed
                for seed in range(self.args.seeds)
                if any((network, variant, seed) not in done for network in self.args.networks)
            ]
            found += [(variant, seeds[at : at + together]) for at in range(0, len(seeds), together)]
        return found

    def run(self) -> None:
        """All that is left to do, or as much as there is time for."""
        groups = self.to_do()
        say(f"{sum(len(seeds) for _, seeds in groups)} trainings of {', '.join(self.args.networks)} to do")
        for _ in range(max((len(seeds) for _, seeds in groups), default=0)):
            slot = Slot(
                self.args.networks,
                self.args.device,
                self.args.batch,
                self.args.weight_decay,
                graph=not self.args.eager,
            )
            self.slots.append(slot)
        say(f"ready after {self.clock() - self.began:.1f} s")
        took = 0.0
        for variant, seeds in groups:
            began = self.clock()
            if self.args.whole and began - self.began + 1.1 * took > self.args.stop_after:
                say(f"{variant} would not end in time")
                return
            in_time = self.train(variant, seeds)
            took = self.clock() - began
            if not in_time:
                say(f"stopped after {self.clock() - self.began:.0f} s: the same command does the rest")
                return

    def is_late(self) -> bool:
        """Whether another epoch would end too late."""
        return bool(self.clock() - self.began + 1.2 * self._epoch_s > self.args.stop_after)

    # ---- training

    def train(self, variant: str, seeds: Sequence[int]) -> bool:
        """Train some seeds side by side; whether there was time for all of it."""
        workers = max(1, self.args.workers // len(seeds))
        group = []
        for slot, seed in zip(self.slots, seeds, strict=False):
            loader = loader_of(
                variant, self.arrays, self.settings, seed=seed, workers=workers, device=self.args.device
            )
            group.append(Training(slot, loader, variant, seed))
        self.begin(group)
        try:
            while group[0].epoch < self.args.epochs:
                if self.is_late():
                    self.save(group)
                    return False
                self.one_epoch(group)
                epoch = group[0].epoch
                if self.args.save_every and epoch % self.args.save_every == 0 and epoch < self.args.epochs:
                    self.save(group)
        finally:
            for training in group:
                training.close()
        self.note(group)
        return True

    def one_epoch(self, group: Sequence[Training]) -> None:
        began, epoch, per_epoch = self.clock(), group[0].epoch, len(group[0].loader)
        rates = list(rates_of(per_epoch * self.args.epochs, self.args.lr))[epoch * per_epoch :]
        for training in group:
            training.waited_s = 0.0
        for rate, batches in zip(rates, zip(*(each.batches() for each in group), strict=True), strict=False):
            for training, (images, targets) in zip(group, batches, strict=True):
                training.slot.learn(images, targets, rate)
        for training in group:
            training.epoch += 1
            with training.slot.here():
                for learner in training.slot.learners:
                    training.losses[learner.name].append(round(learner.loss.item() / per_epoch, 4))
                    learner.loss.zero_()
                    if training.epoch % self.args.look_every == 0 or training.epoch == self.args.epochs:
                        training.looks[learner.name].append((training.epoch, learner.accuracy(self.test)))
        self._epoch_s = self.clock() - began
        for training in group:
            training.seconds += self._epoch_s
        self.tell(group, per_epoch)

    def tell(self, group: Sequence[Training], per_epoch: int) -> None:
        rate = len(group) * per_epoch * self.args.batch / self._epoch_s
        waited = sum(training.waited_s for training in group) / self._epoch_s
        said = [f"{name} {values[-1]:.3f}" for name, values in group[0].losses.items()]
        looked = [f"{looks[-1][1]:.2f} %" for looks in group[0].looks.values() if looks]
        say(
            f"{self.clock() - self.began:6.1f} s  {group[0].variant} x {len(group)} epoch {group[0].epoch}: {rate:,.0f} images/s, "
            f"{waited:.0%} waiting; {', '.join([*said, *looked])}"
        )

    # ---- what is kept

    def path(self, training: Training) -> Path:
        return Path(self.args.work) / f"{'-'.join(self.args.networks)}-{training.name}.pt"

    def save(self, group: Sequence[Training]) -> None:
        for training in group:
            path = self.path(training)
            path.parent.mkdir(parents=True, exist_ok=True)
            partly = path.with_suffix(".part")
            torch.save({"settings": asdict(self.settings), **training.state()}, partly)
            partly.replace(path)

    def begin(self, group: Sequence[Training]) -> None:
        """From the beginning, or all from the same epoch on."""
        states = [self.kept(training) for training in group]
        epochs = {None if state is None else state["epoch"] for state in states}
        for training, state in zip(group, states, strict=True):
            if len(epochs) == 1 and state is not None:
                training.restore(state)
                continue
            for learner in training.slot.learners:
                learner.begin(training.seed)
        if self.args.device != "cpu":
            torch.cuda.synchronize()  # trainings go on on streams of their own
        if group[0].epoch:
            say(f"{group[0].variant}: goes on behind epoch {group[0].epoch}")

    def kept(self, training: Training) -> dict[str, Any] | None:
        path = self.path(training)
        if not path.exists():
            return None
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return state if state["settings"] == asdict(self.settings) else None

    def note(self, group: Sequence[Training]) -> None:
        done = {key_of(row) for row in self.rows()}
        gpu = "none" if self.args.device == "cpu" else torch.cuda.get_device_name()
        for training in group:
            for name, looks in training.looks.items():
                row = {
                    "network": name,
                    "variant": training.variant,
                    "seed": training.seed,
                    "accuracy": looks[-1][1],
                    "looks": looks,
                    "losses": training.losses[name],
                    "split": split_of(training.loader),
                    "seconds": round(training.seconds, 1),
                    "beside": len(group) - 1,
                    "gpu": gpu,
                    "settings": asdict(self.settings),
                }
                if key_of(row) not in done:
                    append_row(self.args.out, row)
            self.path(training).unlink(missing_ok=True)


# ---- the program


def settings_of(args: argparse.Namespace) -> Settings:
    return Settings(**{name: getattr(args, name) for name in Settings.__dataclass_fields__})


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="CIFAR-10 as JPEG files: a folder or a tar")
    add("--out", type=Path, required=True, help="a line of JSON for each training")
    add("--work", type=Path, default=ROOT / ".cache" / "reuse_accuracy", help="arrays and checkpoints")
    add("--networks", type=words, default=["resnet18", "vgg16"], help=f"of {', '.join(NETWORKS)}")
    add("--variants", type=words, default=list(DEFAULT), help=f"of {', '.join(VARIANTS)}")
    add("--seeds", type=int, default=5)
    add("--together", type=int, default=5, help="seeds that are trained side by side")
    add("--epochs", type=int, default=30)
    add("--batch", type=int, default=512)
    add("--lr", type=float, default=0.2, help="the highest learning rate")
    add("--weight-decay", type=float, default=5e-4)
    add("--magnitude", type=int, default=10, help="of RandAugment, of 31")
    add("--padding", type=int, default=3, help="pixels, for the random crop")
    add("--limit", type=int, help="images of each class in each part; default: all")
    add("--workers", type=int, default=max(1, _machine.cores() - 1), help="of all trainings together")
    add("--look-every", type=int, default=5, help="epochs between looks at the test images")
    add("--save-every", type=int, default=10, help="epochs between checkpoints; 0: none but at --stop-after")
    add("--stop-after", type=float, default=math.inf, help="seconds; begin no epoch that would end later")
    add("--whole", action="store_true", help="begin no variant that would not end in time, either")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--eager", action="store_true", help="on a GPU: no graphs, should they fail")
    add("--report", action="store_true", help="only the table and the picture of what is in --out")
    add("--plot", type=Path, help="an SVG file")
    args = parser.parse_args(arguments)
    for name, known in (("networks", NETWORKS), ("variants", VARIANTS)):
        unknown = [each for each in getattr(args, name) if each not in known]
        if unknown:
            parser.error(f"no {name}: {', '.join(unknown)}; there are {', '.join(known)}")
    return args


def main(arguments: Sequence[str]) -> int:
    args = parsed(arguments)
    if not args.report:
        Bench(args).run()
    rows = read_rows(args.out, asdict(settings_of(args)))
    titles = {name: variant.title for name, variant in VARIANTS.items()}
    print(table(rows, titles))
    facts = {"gpu": ", ".join(sorted({row["gpu"] for row in rows})), **_machine.describe(ROOT)}
    print("\n" + ", ".join(f"{name} {value}" for name, value in facts.items()))
    if args.plot and rows:
        args.plot.parent.mkdir(parents=True, exist_ok=True)
        args.plot.write_text(drawn(rows, titles) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
