"""Two minutes with penstock: a race against torch's DataLoader, a killed worker, a stop and a resume, and what it looked like.

    python examples/demo.py              under two minutes on two cores
    python examples/demo.py --quick      a few seconds, to see that it works; its throughputs mean little

Everything it makes is in ./demo-out: the images, the trace, the summary page. It ends with 1 if any batch differed from what
it should have been.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

try:
    import torch
    from demo_screen import Screen, escape, rates_table
    from demo_shapes import Shapes, Trainer, batch_hash, epoch_hash, make_images
except ImportError as exc:
    sys.exit(f"the demo needs rich and pillow ({exc}): pip install 'penstock[demo]'")

import penstock
from penstock.report import write_summary

SEED = 2026
RACE_LIMIT_S = 45.0
"""The race starts no new round after this, so that a slow machine also gets through in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of the demo."""

    out: Path
    images: int
    batch: int
    workers: int
    rounds: int
    """How often the loaders take turns."""
    warm: int
    """Batches of a turn before the clock starts: workers start and their queues fill."""
    timed: int
    """Batches of a turn on the clock."""

    @property
    def batches(self) -> int:
        return -(-self.images // self.batch)


@dataclass(slots=True)
class Racer:
    """One loader of the race, the network it feeds, and what was measured."""

    name: str
    loader: Any
    trainer: Trainer = field(default_factory=Trainer)
    rates: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    loss: float = 0.0

    def turn(self, plan: Plan, step: Callable[[str, str], None]) -> None:
        """Train on some batches of a new epoch; the first ones are not on the clock."""
        batches = iter(self.loader)
        began = waited = 0.0
        for number in range(plan.warm + plan.timed):
            if number == plan.warm:
                began, waited = time.perf_counter(), 0.0
            asked = time.perf_counter()
            images, labels = next(batches)
            waited += time.perf_counter() - asked
            self.loss = self.trainer.step(images, labels)
            step(self.name, self.note())
        took = time.perf_counter() - began
        self.rates.append(plan.timed * plan.batch / took)
        self.waits.append(waited / took)
        # The iterator goes here, and its workers with it: the other loader gets a quiet machine.
        del batches

    def note(self) -> str:
        rate = f"{median(self.rates):5.0f}/s  waits {median(self.waits):3.0%}" if self.rates else ""
        return f"{rate}  loss {self.loss:.2f}"


def our_loader(plan: Plan, **more: Any) -> penstock.DataLoader[Any]:
    dataset = Shapes(plan.out / "images")
    options = {"batch_size": plan.batch, "shuffle": True, "num_workers": plan.workers, "seed": SEED}
    return penstock.DataLoader(dataset, **{**options, **more})


def torch_loader(plan: Plan) -> torch.utils.data.DataLoader[Any]:
    dataset = Shapes(plan.out / "images")
    return torch.utils.data.DataLoader(dataset, batch_size=plan.batch, shuffle=True, num_workers=plan.workers)


# ---- the chapters


def images(plan: Plan, screen: Screen) -> None:
    screen.phase(1, f"{plan.images} small JPEGs of drawn shapes")
    with screen.bars({"drawing": plan.images}) as bars:
        for done in make_images(plan.out / "images", plan.images):
            bars.at("drawing", done)
    screen.say(f"in {shown(plan.out / 'images')}")


def race(plan: Plan, screen: Screen) -> tuple[Racer, Racer]:
    screen.phase(
        2,
        f"The same training with torch's DataLoader and with ours, in turns ({plan.workers} workers, batches of {plan.batch})",
    )
    racers = (Racer("torch", torch_loader(plan)), Racer("penstock", our_loader(plan)))
    total = plan.rounds * (plan.warm + plan.timed)
    began = time.monotonic()
    with screen.bars({racer.name: total for racer in racers}) as bars:
        for number in range(plan.rounds):
            if number >= 2 and time.monotonic() - began > RACE_LIMIT_S:
                break
            # Whoever went second goes first in the next round: a machine that slows down is unfair to neither.
            for racer in racers if number % 2 == 0 else racers[::-1]:
                racer.turn(plan, bars.step)
    for racer in racers:
        screen.say(f"{racer.name:<9}{rate_text(racer.rates)} samples/s, waits {median(racer.waits):.0%}")
    return racers


def killed(plan: Plan, screen: Screen) -> tuple[list[str], str, dict[str, Any], str, list[tuple[bool, str]]]:
    """An undisturbed epoch, and one whose worker is killed; torch's loader for comparison."""
    screen.phase(3, "kill -9 a worker in the middle of an epoch")
    trace = plan.out / "trace.json"
    middle = plan.batches // 3
    with screen.bars({"undisturbed": plan.batches, "killed": plan.batches}) as bars:
        reference, weights = Trainer(), Trainer()
        whole = list(epoch(our_loader(plan), reference, lambda: bars.step("undisturbed")))
        loader = our_loader(plan, trace=trace)
        hashes: list[str] = []
        for digest in epoch(loader, weights, lambda: bars.step("killed")):
            hashes.append(digest)
            if len(hashes) == middle:
                pid = loader.stats()["worker_pids"][0]
                screen.say(f"kill -9 {pid}, after batch {middle} of {plan.batches}")
                os.kill(pid, signal.SIGKILL)
    stats = loader.stats()
    checks = [
        compare("kill -9 of a worker", whole, hashes),
        (stats["restarts"] >= 1, "the killed worker was replaced"),
    ]
    for check in checks:
        screen.check(*check)
    screen.say(f"[dim]trained weights: {sameness(reference.digest(), weights.digest())}[/]")
    screen.say(f"torch's DataLoader, when one of its workers is killed: {escape(torch_when_killed(plan))}")
    return whole, reference.digest(), stats, loader.diagnose(), checks


def resumed(plan: Plan, screen: Screen, whole: list[str], weights: str) -> list[tuple[bool, str]]:
    """Stop in the middle; another process with another number of workers does the rest."""
    other = plan.workers + 1
    screen.phase(4, f"Stop, and resume in another process with {other} workers instead of {plan.workers}")
    stop = plan.batches // 2
    with screen.bars({"before": stop, "after": plan.batches - stop}) as bars:
        loader, trainer = our_loader(plan), Trainer()
        batches = epoch(loader, trainer, lambda: bars.step("before"))
        hashes = [next(batches) for _ in range(stop)]
        state = loader.state_dict()
        batches.close()
        (plan.out / "state.json").write_text(json.dumps(state))
        trainer.save(plan.out / "network.pt")
        screen.say(f"state.json, {len(json.dumps(state))} bytes: {escape(json.dumps(state))}")
        end = {}
        for event in rest_of_epoch(plan, other):
            if "hash" in event:
                hashes.append(event["hash"])
                bars.step("after")
            else:
                end = event
    check = compare(f"stop at batch {stop} and resume with {other} workers", whole, hashes)
    screen.check(*check)
    screen.say(f"[dim]trained weights: {sameness(weights, end.get('weights', ''))}[/]")
    return [check]


def rest_of_epoch(plan: Plan, workers: int) -> Iterator[dict[str, Any]]:
    """Runs `--continue` in a new process and passes on what it says, a JSON line each."""
    command = [
        sys.executable, __file__, "--continue", "--out", str(plan.out), "--batch", str(plan.batch),
        "--images", str(plan.images), "--workers", str(workers),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            yield json.loads(line)
    if child.returncode:
        raise SystemExit(f"the process that resumes ended with {child.returncode}")


def continue_epoch(plan: Plan) -> None:
    """What the other process does: load the state, go on to the end of the epoch."""
    loader, trainer = our_loader(plan), Trainer()
    loader.load_state_dict(json.loads((plan.out / "state.json").read_text()))
    trainer.load(plan.out / "network.pt")
    for digest in epoch(loader, trainer):
        print(json.dumps({"hash": digest}), flush=True)
    print(json.dumps({"weights": trainer.digest()}), flush=True)


# ---- parts


def epoch(
    loader: penstock.DataLoader[Any], trainer: Trainer, step: Callable[[], None] = lambda: None
) -> Iterator[str]:
    """Train an epoch; yields the hash of every batch."""
    for images, labels in loader:
        digest = batch_hash(images, labels)
        trainer.step(images, labels)
        step()
        yield digest


def compare(what: str, whole: list[str], hashes: list[str]) -> tuple[bool, str]:
    same = sum(one == other for one, other in zip(whole, hashes, strict=False))
    if hashes == whole:
        return (
            True,
            f"{what}: all {len(whole)} batches have the hashes of the undisturbed run ({epoch_hash(whole)})",
        )
    return (
        False,
        f"{what}: only {same} of {len(whole)} batches are those of the undisturbed run; {len(hashes)} came",
    )


def sameness(one: str, other: str) -> str:
    """Told, not checked: sums of floats may depend on more than the batches."""
    return f"identical to the last bit ({one})" if one == other else f"differ ({one}, {other})"


def torch_when_killed(plan: Plan) -> str:
    """In a process of its own: what is raised where, in which of its threads, is a matter of luck, and the demo must go on."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        said = "its process failed"
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            said = killed_torch(plan)
        finally:
            os.write(theirs, f"{said}\n".encode())
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.readline().strip()
    os.waitpid(child, 0)
    return said


def killed_torch(plan: Plan) -> str:
    batches: Any = iter(torch_loader(plan))
    try:
        next(batches)
        victim = multiprocessing.active_children()[0]
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        for _ in batches:
            pass
    except Exception as exc:  # noqa: BLE001 - which of them is a matter of luck
        return f"{type(exc).__name__}: {str(exc).partition(chr(10))[0].strip()}"
    finally:
        with contextlib.suppress(Exception):
            batches._shutdown_workers()
    return "the epoch went on"


def rate_text(rates: list[float]) -> str:
    return f"{median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"


def shown(path: Path) -> str:
    """Short where it can be."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def verdict(theirs: Racer, ours: Racer, stats: dict[str, Any]) -> str:
    """The ratio with its spread, and why it is not larger."""
    ratios = [our / their for our, their in zip(ours.rates, theirs.rates, strict=True)]
    stages = stats["stages_s"]
    own = stages["prepare"] / max(1e-9, sum(stages.values()))
    said = f"{median(ratios):.2f} times torch's throughput (rounds: {min(ratios):.2f} to {max(ratios):.2f})."
    if median(ratios) < 1.03:
        said += " Not faster here."
    return (
        f"{said} {own:.0%} of our workers' time is the dataset's own code (decode, crop, flip), which is the same under "
        f"any loader, and the training takes its share of the cores; only what is left can differ."
    )


def finish(
    plan: Plan,
    screen: Screen,
    racers: tuple[Racer, Racer],
    run: dict[str, Any],
    said: str,
    checks: list[tuple[bool, str]],
) -> None:
    theirs, ours = racers
    page, trace = plan.out / "summary.html", plan.out / "trace.json"
    write_summary(
        page,
        trace,
        run,
        title="penstock: an epoch in which a worker was killed",
        diagnosis=said,
        rates={f"{racer.name}": racer.rates for racer in racers},
        checks=checks,
    )
    rows = [
        (
            racer.name,
            f"{median(racer.rates):.0f}",
            f"{min(racer.rates):.0f} to {max(racer.rates):.0f}",
            f"{median(racer.waits):.0%}",
        )
        for racer in racers
    ]
    screen.panel(rates_table(rows), f"median of {len(ours.rates)} turns")
    screen.say(verdict(theirs, ours, ours.loader.stats()))
    screen.say(f"[bold]diagnosis[/]  {ours.loader.diagnose()}")
    for check in checks:
        screen.check(*check)
    screen.say(f"trace      {shown(trace)}  (open in ui.perfetto.dev)")
    screen.say(f"summary    {shown(page)}  (open in a browser)")
    screen.say(f"[dim]took {screen.elapsed_s():.0f} s[/]")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for all that is made")
    parser.add_argument("--images", type=int, help="how many images")
    parser.add_argument("--batch", type=int, help="samples per batch")
    parser.add_argument("--workers", type=int, default=2, help="of both loaders")
    parser.add_argument("--continue", dest="go_on", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    plan = Plan(
        out=args.out.absolute(),
        images=args.images or (180 if args.quick else 1500),
        batch=args.batch or (12 if args.quick else 50),
        workers=args.workers,
        rounds=2 if args.quick else 6,
        warm=4 if args.quick else 6,
        timed=6 if args.quick else 20,
    )
    warnings.filterwarnings("ignore", "This DataLoader will create")  # three workers on two cores are meant
    warnings.filterwarnings("ignore", "This process .* is multi-threaded")
    torch.set_num_threads(1)  # the workers want the cores too
    if args.go_on:
        continue_epoch(plan)
        return 0
    screen = Screen()
    screen.hear("penstock")
    screen.say(
        f"[bold]penstock {penstock.__version__}[/], torch {torch.__version__}, {len(os.sched_getaffinity(0))} cores"
    )
    plan.out.mkdir(parents=True, exist_ok=True)
    images(plan, screen)
    racers = race(plan, screen)
    whole, weights, run, said, checks = killed(plan, screen)
    checks += resumed(plan, screen, whole, weights)
    finish(plan, screen, racers, run, said, checks)
    return 0 if all(good for good, _ in checks) else 1


if __name__ == "__main__":
    if sys.platform != "linux":
        sys.exit("the demo kills workers of penstock's engine, which needs Linux")
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
