"""`penstock simulate cache …`: what a cache of some size would save, before you rent it. No data is read, no process started."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.cli.table import aligned
from penstock.config import UNITS, parse_bytes
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.sim.cache_group import CacheScenario, EpochTraffic
    from penstock.sim.fetch_pace import Pace

ABOUT = """\
Plays the caches of a group of nodes over a few epochs of shuffled training: the same rules for keeping, dropping and ordering samples as the cache's
own, on a plan of accesses, without data. Says which share of the bytes comes from the node's own memory, from peers and from the source, how evenly
ranks wait, and how much cache you need."""
EPILOG = """\
examples:
  penstock simulate cache --nodes 128 --gpus 8 --data 1.28M --mean 110KB --memory 100GiB
  penstock simulate cache --nodes 8 --memory 4GiB --policy auto --policy lru --policy lobster
  penstock simulate cache --nodes 8 --memory 20GiB --source 5GB --network 10GB --gpu-rate 1200"""
BAR = 40
ROWS = 8
LAST = 3
"""Epochs at the end that the table and the step time are taken from."""


def add_simulate(commands: Any) -> None:
    """Add the command and its options."""
    simulate = commands.add_parser("simulate", help="predict what a cache would do, without data")
    kinds = simulate.add_subparsers(dest="kind", required=True, metavar="what")
    command = kinds.add_parser(
        "cache",
        help="a cache of bytes that nodes share: hits, traffic, waits, and how much of it you need",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    count, number, size = _positive, _number, _bytes
    add = command.add_argument
    add("--nodes", type=count, default=1, metavar="N", help="machines (1)")
    add("--gpus", type=count, default=8, metavar="M", help="GPUs per machine, a rank each (8)")
    add("--data", type=_count, default=1_280_000, metavar="SAMPLES", help="samples, such as 1.28M (1.28M)")
    add("--mean", type=size, default=110_000, metavar="BYTES", help="mean size of a sample (110KB)")
    add(
        "--spread", type=number, default=0.0, metavar="S", help="deviation of the sizes' logarithm (0: alike)"
    )
    add("--memory", type=size, required=True, metavar="BYTES", help="cache of one machine, such as 100GiB")
    add("--batch", type=count, default=256, metavar="B", help="samples per batch of one GPU (256)")
    add("--epochs", type=count, default=6, metavar="E", help="epochs to play (6)")
    add("--ring", type=count, default=4, metavar="K", help="batches per GPU that the cache reads ahead (4)")
    add(
        "--policy",
        action="append",
        metavar="NAME",
        help="auto, lobster, lobster-guarded, lru, no-evict or farthest; may be repeated (auto)",
    )
    add(
        "--order",
        choices=("as_is", "even"),
        default="as_is",
        help="even: spread misses over ranks and batches",
    )
    add(
        "--deal",
        choices=("as_is", "owner"),
        default="as_is",
        help="owner: batches go to nodes that keep them",
    )
    add("--gpu-rate", type=number, default=1000.0, metavar="R", help="samples/s one GPU trains (1000)")
    add("--source", type=size, default=10**10, metavar="BYTES", help="bytes/s the source gives to all (10GB)")
    add(
        "--network",
        type=size,
        default=10**10,
        metavar="BYTES",
        help="bytes/s one machine gets from peers (10GB)",
    )
    add("--seed", type=int, default=0, help="of the order and the sizes (0)")
    command.set_defaults(act=act)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def _number(text: str) -> float:
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}")
    return number


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text, "it")
    except ConfigError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


def _count(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", text.upper())
    if match is None or (count := round(float(match[1]) * UNITS[match[2]])) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of samples such as 50000 or 1.28M, got {text}")
    return count


def act(options: argparse.Namespace) -> int:
    from penstock.sim.cache_group import CacheScenario, simulate_cache

    scenarios = [
        CacheScenario(
            nodes=options.nodes,
            gpus=options.gpus,
            samples=options.data,
            mean_bytes=options.mean,
            memory_bytes=options.memory,
            batch_size=options.batch,
            epochs=options.epochs,
            seed=options.seed,
            policy=policy,
            order=options.order,
            deal=options.deal,
            ring_batches=options.ring,
            spread=options.spread,
        )
        for policy in options.policy or ["auto"]
    ]
    print("\n".join(head(scenarios[0])), flush=True)
    found = [(each, simulate_cache(each, progress(each.policy))) for each in scenarios]
    print("\n".join(["", *shares(found), "", *waits(found[0], options)]))
    print("\n".join(["", *answers(scenarios[0], options), "", *plot(scenarios[0])]))
    return 0


def progress(policy: str) -> Callable[[int, int], None]:
    """Return what shows epochs done, on a terminal only."""

    def show(done: int, of: int) -> None:
        if sys.stderr.isatty():
            end = "" if done < of else "\r\033[K"
            print(f"\rpenstock: {policy}: epoch {done} of {of}{end}", end="", file=sys.stderr, flush=True)

    return show


def head(scenario: CacheScenario) -> list[str]:
    data, nodes = scenario.data_bytes, scenario.nodes
    memory, ring, share = scenario.memory_bytes, scenario.ring_bytes, scenario.memory_bytes / data
    job = f"{nodes} x {scenario.gpus} GPUs, {scenario.samples:,} samples of {in_bytes(scenario.mean_bytes)} in the mean"
    cache = f"cache: {in_bytes(memory)} per node, {in_bytes(ring)} of it the ring"
    return [
        f"{job}: {in_bytes(data)}",
        f"{cache}; {share:.1%} of the data, all nodes {nodes * share:.2f} times the data",
    ]


def shares(found: list[tuple[CacheScenario, list[EpochTraffic]]]) -> list[str]:
    """Return a table of where bytes come from, in the mean of the last epochs."""
    rows = [["policy", "own memory", "peers", "source", "least possible", "first epoch, source"]]
    for scenario, epochs in found:
        last = epochs[1:][-LAST:] or epochs
        means = [sum(epoch.shares[kind] for epoch in last) / len(last) for kind in range(3)]
        rows.append(
            [
                scenario.policy,
                *(f"{mean:.1%}" for mean in means),
                f"{scenario.bound:.1%}",
                f"{epochs[0].shares[2]:.1%}",
            ]
        )
    return aligned(rows, "<>>>>>")


def waits(one: tuple[CacheScenario, list[EpochTraffic]], options: argparse.Namespace) -> list[str]:
    """Return step times, with pools for each rank and with one for each node."""
    import numpy as np

    from penstock.sim.fetch_pace import pace

    scenario, epochs = one
    last = epochs[1:][-LAST:] or epochs
    world = scenario.nodes * scenario.gpus
    links = [
        np.concatenate([epoch.source_bytes for epoch in last]) * (world / options.source),
        np.concatenate([epoch.peer_bytes for epoch in last]) * (scenario.gpus / options.network),
    ]
    train_s = scenario.batch_size / max(1e-9, options.gpu_rate)
    rows = [["step time", "", "of the ideal", "uneven steps"]]
    pools = [("a fetch pool per GPU, 1 batch ahead", 1, 1)]
    pools.append((f"one pool per node, {scenario.ring_batches} ahead", scenario.gpus, scenario.ring_batches))
    for name, ranks, ahead in pools:
        found = pace(links, train_s=train_s, ahead=ahead, pool_ranks=ranks)
        rows.append([name, *pace_row(found)])
    rows.append(["training alone", f"{train_s * 1e3:.1f} ms", "", ""])
    return aligned(rows, "<>>>")


def pace_row(found: Pace) -> list[str]:
    return [f"{found.step_s * 1e3:.1f} ms", f"{found.over_ideal:.2f} x", f"{found.uneven:.0%}"]


def answers(scenario: CacheScenario, options: argparse.Namespace) -> list[str]:
    """Answer "how much cache do I need?" by the bound, which the default policy meets."""
    ring = scenario.ring_batches * scenario.gpus * scenario.batch_size * scenario.mean_bytes
    wanted = scenario.nodes * scenario.gpus * options.gpu_rate * scenario.mean_bytes
    share = min(1.0, options.source / max(1.0, wanted))
    enough = ring + (1 - share) * scenario.data_bytes / scenario.nodes
    lines = [
        "How much cache do I need?",
        f"  {in_bytes(ring + scenario.data_bytes / scenario.nodes)} per node: after the first epoch, nothing comes from the source",
    ]
    if share < 1:
        lines.append(
            f"  {in_bytes(enough)} per node: the source ({in_bytes(options.source)}/s) keeps up with {in_bytes(wanted)}/s of training"
        )
    else:
        lines.append(
            f"  none to keep up: training takes {in_bytes(wanted)}/s, and the source gives {in_bytes(options.source)}/s"
        )
    return lines


def plot(scenario: CacheScenario) -> list[str]:
    """Draw the share that the source serves after the first epoch, by memory per node."""
    ring, need = scenario.ring_bytes, scenario.data_bytes / scenario.nodes
    sizes = [(ring + need * row / ROWS, "") for row in range(ROWS + 1)]
    sizes = sorted([*sizes, (float(scenario.memory_bytes), "  <- yours")])
    rows = []
    for memory, mark in sizes:
        share = max(0.0, 1 - scenario.nodes * (memory - ring) / scenario.data_bytes)
        rows.append([in_bytes(memory), f"{share:.0%}", "#" * round(BAR * share) + mark])
    return ["memory per node, and the share the source serves per epoch", *aligned(rows, ">><")]


def in_bytes(count: float) -> str:
    from penstock.report.svg import in_bytes as written

    return written(count)
