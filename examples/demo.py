"""Two minutes with penstock: a killed worker, a resume on other ranks, a race against torch's DataLoader, and a page about it.

    python examples/demo.py              under two minutes on two cores
    python examples/demo.py --quick      small sizes, to see that it works; its throughputs mean little

It needs no GPU and no data, and writes to ./demo-out. The exit code is 1 if any weight or sample is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

try:
    import torch
    from demo_faults import Script, lines_of, run_script
    from demo_photos import (
        SEEN,
        Trainer,
        folder_for_ours,
        folder_for_torch,
        make_photos,
        sample_hashes,
        torchvision,
    )
    from demo_race import (
        Laps,
        Racer,
        believable,
        no_gain,
        preparing_rate,
        race,
        training_limit,
        training_rate,
    )
    from demo_screen import Screen, escape, rates_table
except ImportError as exc:
    sys.exit(f"the demo needs rich and penstock's image extra ({exc}): pip install 'penstock[demo]'")

import penstock
from penstock.cli.main import main as penstock_command
from penstock.report import write_summary
from penstock.report.race import Race, may_tell, ratios, verdict

HERE = Path(__file__).parent
SEED = 2026
TIMES = 8
"""How often the race goes through the photos in an epoch, so that no turn comes to its end."""
WORKERS_AT_MOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of the demo."""

    out: Path
    photos: int
    batch: int
    """Of the chapters about faults."""
    race_batch: int
    workers: int
    cores: int
    laps: Laps
    limit_s: float

    @property
    def folder(self) -> Path:
        return self.out / "photos"

    @property
    def batches(self) -> int:
        return -(-self.photos // self.batch)


Checks = list[tuple[bool, str]]


# ---- the chapters


def photos(plan: Plan, screen: Screen) -> None:
    screen.phase(1, f"{plan.photos} photo-sized JPEGs (500 by 375), generated")
    with screen.bars({"photos": plan.photos}) as bars:
        for done in make_photos(plan.folder, plan.photos):
            bars.at("photos", done)
    if torchvision() is None:
        screen.say(
            "torchvision is not installed: torch's loader reads the photos with Pillow and numpy, ours with penstock.ImageFolder, "
            "and RandAugment is left out for both. pip install torchvision shows the usual case."
        )
    else:
        screen.say(
            f"read by torchvision's ImageFolder: RandomResizedCrop({SEEN}), flip, RandAugment, normalise, with both loaders"
        )


def killed(plan: Plan, screen: Screen) -> Checks:
    """The same script with torch's loader and with ours; one worker of each is killed."""
    screen.phase(2, "The same training script, and kill -9 of a worker: torch's DataLoader, then ours")
    script = str(HERE / "demo_train.py")
    words = (str(plan.folder), str(plan.batch), str(plan.workers))
    names = ("torch, killed", "ours, killed", "ours, whole")
    middle = max(2, plan.batches // 6)

    def with_torch() -> None:
        run_script(Path(script), *words)

    def with_ours(*options: str) -> int:
        return penstock_command(["run", *options, script, *words])

    def dead(pid: int) -> None:
        screen.say(f"kill -9 {pid}, one of its workers, after step {middle} of {plan.batches}")

    with screen.bars(dict.fromkeys(names, plan.batches)) as bars:
        screen.say("$ python examples/demo_train.py PHOTOS")
        torchs = Script(with_torch, kill_after=middle).follow(lambda step: bars.at(names[0], step), dead)
        screen.check(bool(torchs.weights), escape(torchs.last_words()))
        screen.say("$ penstock run examples/demo_train.py PHOTOS        (the same file, not a line changed)")
        traced = ("--trace", str(plan.out / "trace.json"))
        mine = Script(lambda: with_ours(*traced), kill_after=middle).follow(
            lambda step: bars.at(names[1], step), dead
        )
        for line in lines_of(mine.errors, "it is replaced"):
            screen.say(escape(line))
        whole = Script(with_ours).follow(lambda step: bars.at(names[2], step))
    same = bool(mine.weights) and mine.weights == whole.weights
    checks = [
        (
            same,
            f"a worker was killed, and the trained weights are those of a run without that, to the last bit ({mine.weights})"
            if same
            else f"the weights differ: {mine.weights or mine.last_words()}, undisturbed {whole.weights or whole.last_words()}",
        ),
        (bool(lines_of(mine.errors, "it is replaced")), "the killed worker was replaced"),
    ]
    for check in checks:
        screen.check(*check)
    return checks


def resumed(plan: Plan, screen: Screen) -> Checks:
    """Stop in the middle; other processes do the rest with another number of workers, then of ranks."""
    more = plan.workers + 1
    screen.phase(
        3, f"Stop half-way; go on with {more} workers instead of {plan.workers}, and again on 2 ranks"
    )
    stop = plan.batches // 2
    rest = plan.batches - stop
    with screen.bars({"whole": plan.batches, f"{more} workers": rest, "2 ranks": 2 * rest}) as bars:
        whole = Script(partial(epoch, plan, save_after=stop)).follow(lambda _: bars.step("whole"))
        state = (plan.out / "state.json").read_text()
        screen.say(f"the state, {len(state)} bytes: {escape(state)}")
        one = Script(partial(epoch, replace(plan, workers=more))).follow(
            lambda _: bars.step(f"{more} workers")
        )
        halves = replace(plan, batch=plan.batch // 2, workers=1)
        ranks = [Script(partial(epoch, halves, rank, 2)) for rank in range(2)]
        two = [rank.follow(lambda _: bars.step("2 ranks")) for rank in ranks]
        for ended in (whole, one, *two):
            if ended.code:
                raise SystemExit(f"a process of the demo failed: {ended.last_words()}")
    left = whole.samples[stop * plan.batch :]
    checks = [
        same_rest(f"stop after batch {stop}, go on with {more} workers", left, one.samples, in_order=True),
        (
            one.weights == whole.weights,
            f"and the trained weights are those of the run that never stopped, to the last bit ({whole.weights})"
            if one.weights == whole.weights
            else f"the weights differ: {one.weights} where the run that never stopped has {whole.weights}",
        ),
        same_rest(
            f"stop after batch {stop}, go on on 2 ranks",
            left,
            two[0].samples + two[1].samples,
            in_order=False,
        ),
    ]
    for check in checks:
        screen.check(*check)
    return checks


def alone(plan: Plan, screen: Screen) -> Race:
    screen.phase(
        4,
        f"The race, loaders alone: photos to batches of {plan.race_batch}, {plan.workers} workers each, in turns",
    )
    racers = (
        Racer("torch", torch_loader(plan, TIMES)),
        Racer("penstock", our_loader(plan, TIMES, batch_size=plan.race_batch)),
    )
    limit = run_race(plan, screen, racers, lambda: preparing(plan))
    return finished(
        screen,
        Race(
            title="The loader alone",
            about="Photo-sized JPEGs to batches for training: decode, random crop, flip, RandAugment, normalise.",
            rounds={racer.name: racer.rates for racer in racers},
            limit=limit,
            limit_name="our preparation in as many processes, with no loader around it and nothing to carry",
            unit="images/s",
            says=verdict(racers[1].rates, racers[0].rates),
        ),
    )


def training(plan: Plan, screen: Screen, prepared: float | None) -> Race:
    screen.phase(5, "The race in training: the same, and a small network learns from it on the same cores")
    racers = (
        Racer("torch", torch_loader(plan, TIMES), Trainer()),
        Racer("penstock", our_loader(plan, TIMES, batch_size=plan.race_batch), Trainer()),
    )
    batch = next(iter(our_loader(plan, batch_size=plan.race_batch, num_workers=0)))

    def limit(prepared: float) -> float:
        trained = training_rate(Trainer(), batch, seconds=plan.limit_s)
        return training_limit(training=trained, preparing=prepared, workers=plan.workers, cores=plan.cores)

    best = run_race(plan, screen, racers, None if prepared is None else partial(limit, prepared))
    found = Race(
        title="In training",
        about="The same photos, and a small network that learns from them on the same cores.",
        rounds={racer.name: racer.rates for racer in racers},
        limit=best,
        limit_name="every core busy with that preparation and that training, and with nothing else",
        unit="images/s",
        says=verdict(racers[1].rates, racers[0].rates),
    )
    finished(screen, found)
    screen.say(f"loader.diagnose(): {racers[1].loader.diagnose()}")
    return found


def nothing_gained(plan: Plan, screen: Screen) -> Race:
    screen.phase(6, "Where nothing is to be gained: the data is in memory, and the network is deep")
    images, labels = next(iter(our_loader(plan, batch_size=plan.race_batch, num_workers=0)))
    dataset = torch.utils.data.TensorDataset(images.repeat(TIMES, 1, 1, 1), labels.repeat(TIMES))
    kept = {"batch_size": 8, "shuffle": True, "num_workers": 1}
    racers = (
        Racer("torch", torch.utils.data.DataLoader(dataset, **kept), Trainer(deep=4)),
        Racer("penstock", penstock.DataLoader(dataset, **kept), Trainer(deep=4)),
    )
    run_race(plan, screen, racers, None)
    found = Race(
        title="Where nothing is to be gained",
        about=f"Data that lies in memory, and a deeper network. {no_gain(*racers)}",
        rounds={racer.name: racer.rates for racer in racers},
        unit="images/s",
        says=verdict(racers[1].rates, racers[0].rates),
    )
    finished(screen, found)
    screen.say(no_gain(*racers))
    return found


# ---- parts


def our_loader(plan: Plan, times: int = 1, **more: Any) -> penstock.DataLoader[Any]:
    options = {"batch_size": plan.batch, "shuffle": True, "num_workers": plan.workers, "seed": SEED}
    return penstock.DataLoader(folder_for_ours(plan.folder, times), **{**options, **more})


def torch_loader(plan: Plan, times: int) -> torch.utils.data.DataLoader[Any]:
    dataset = folder_for_torch(plan.folder, times)
    return torch.utils.data.DataLoader(
        dataset, batch_size=plan.race_batch, shuffle=True, num_workers=plan.workers
    )


def preparing(plan: Plan) -> float:
    dataset = folder_for_ours(plan.folder, TIMES)
    return preparing_rate(dataset, batch=plan.race_batch, processes=plan.workers, seconds=plan.limit_s)


def run_race(
    plan: Plan, screen: Screen, racers: tuple[Racer, Racer], limit: Callable[[], float] | None
) -> float | None:
    """The race; gives the limit of the machine."""
    turns = plan.laps.rounds * (plan.laps.warm + plan.laps.timed)
    with screen.bars({racer.name: turns for racer in racers}) as bars:
        found = race(racers, plan.laps, bars.step, limit)
    sure = believable(found, [racer.rates for racer in racers])
    if found is not None and sure is None:
        screen.say("no limit: this machine was busy with something else while it was measured")
    return sure


def finished(screen: Screen, found: Race) -> Race:
    rows = [
        (
            name,
            f"{median(rates):,.0f}",
            f"{min(rates):,.0f} to {max(rates):,.0f}",
            share_of(median(rates), found.limit),
        )
        for name, rates in found.rounds.items()
    ]
    if found.limit is not None:
        rows.append(("limit", f"{found.limit:,.0f}", "", ""))
    screen.table(rates_table(rows))
    told = may_tell(ratios(*reversed(list(found.rounds.values()))))
    screen.say(f"[bold]{found.says}[/]" if told else found.says)
    if found.limit is not None:
        screen.say(f"[dim]limit: {found.limit_name}[/]")
    return found


def share_of(rate: float, limit: float | None) -> str:
    return "" if limit is None else f"{rate / limit:.0%} of the limit"


def epoch(plan: Plan, rank: int = 0, world: int = 1, *, save_after: int = 0) -> None:
    """What the processes of chapter 3 do: train an epoch and save the state after a batch of it, or go on from that state."""
    loader, trainer = our_loader(plan, shard=(rank, world)), Trainer()
    if not save_after:
        loader.load_state_dict(json.loads((plan.out / "state.json").read_text()))
        trainer.load(plan.out / "network.pt")
    for number, (images, labels) in enumerate(loader, 1):
        trainer.step(images, labels)
        print(f"step {number} \nsamples {' '.join(sample_hashes(images))}")
        if number == save_after:
            (plan.out / "state.json").write_text(json.dumps(loader.state_dict()))
            trainer.save(plan.out / "network.pt")
    print(f"weights {trainer.digest()}")


def same_rest(what: str, left: list[str], came: list[str], *, in_order: bool) -> tuple[bool, str]:
    """Whether the samples that were left came, each once, every byte of them as in the run that never stopped."""
    if came == left if in_order else sorted(came) == sorted(left):
        order = ", in order" if in_order else ""
        return (
            True,
            f"{what}: the {len(left)} samples that were left, each exactly once, with the same pixels{order}",
        )
    right = len(set(came) & set(left))
    return False, f"{what}: {right} of the {len(left)} samples that were left are right; {len(came)} came"


def shown(path: Path) -> str:
    """Short where it can be."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def finish(plan: Plan, screen: Screen, races: list[Race], checks: Checks) -> None:
    page, trace = plan.out / "summary.html", plan.out / "trace.json"
    title = "penstock: an epoch in which a worker was killed"
    write_summary(page, trace, title=title, races=races, checks=checks)
    screen.phase(7, f"Done in {screen.elapsed_s():.0f} s")
    screen.say(f"page       {shown(page)}  (open it in a browser)")
    screen.say(f"trace      {shown(trace)}  (open it in ui.perfetto.dev)")
    screen.say("Now yours, both ways, without an edit:")
    screen.say("[bold]penstock run --compare --steps 100 YOUR_train.py[/]")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for all that is made")
    parser.add_argument("--photos", type=int, help="how many photos")
    parser.add_argument("--batch", type=int, help="images per batch, in the race")
    parser.add_argument("--workers", type=int, help="of both loaders; by default the cores, at most 8")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    cores = len(os.sched_getaffinity(0))
    quick = Laps(rounds=3, warm=1, timed=2, most_s=5.0)
    plan = Plan(
        out=args.out.absolute(),
        photos=args.photos or (48 if args.quick else 256),
        batch=4 if args.quick else 16,
        race_batch=args.batch or (4 if args.quick else 32),
        workers=args.workers or min(WORKERS_AT_MOST, cores),
        cores=cores,
        laps=quick if args.quick else Laps(rounds=7, warm=4, timed=8, most_s=20.0),
        limit_s=0.2 if args.quick else 0.8,
    )
    warnings.filterwarnings("ignore", "This DataLoader will create")  # one worker more than cores is meant
    warnings.filterwarnings("ignore", "This process .* is multi-threaded")
    torch.set_num_threads(1)  # the workers want the cores too
    screen = Screen()
    screen.hear("penstock")
    screen.say(f"[bold]penstock {penstock.__version__}[/], torch {torch.__version__}, {cores} cores")
    plan.out.mkdir(parents=True, exist_ok=True)
    photos(plan, screen)
    checks = killed(plan, screen)
    checks += resumed(plan, screen)
    first = alone(plan, screen)
    races = [first, training(plan, screen, first.limit), nothing_gained(plan, screen)]
    finish(plan, screen, races, checks)
    return 0 if all(good for good, _ in checks) else 1


if __name__ == "__main__":
    if sys.platform != "linux":
        sys.exit("the demo kills workers of penstock's engine, which needs Linux")
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
