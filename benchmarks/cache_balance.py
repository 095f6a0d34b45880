"""How evenly 1,024 ranks wait for a source, simulated: scripts/bench cache_balance [--nodes 128] [--steps 200]

The source serves 5 and 30 % of the bytes (what the nodes' caches cannot hold) and needs 0.9 of the training's time for that, in the mean. Nothing is
measured here: `penstock.sim` plays the plan and the policies of the cache (see docs/cache.md).
"""

from __future__ import annotations

import argparse
import sys
import time

from penstock.sim.cache_balance import balance


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=128, help="machines of 8 GPUs (128)")
    parser.add_argument("--steps", type=int, default=200, help="steps to play (200)")
    options = parser.parse_args()
    print(f"{options.nodes} x 8 GPUs, batches of 64, {options.steps} steps, load 0.9")
    print("| misses | pools and order | step time / ideal | uneven steps |\n|---|---|---|---|")
    for misses in (0.05, 0.3):
        begin_s = time.monotonic()
        for name, pace in balance(nodes=options.nodes, misses=misses, steps=options.steps).items():
            print(f"| {misses:.0%} | {name} | {pace.over_ideal:.3f} | {pace.uneven:.1%} |", flush=True)
        print(f"simulated in {time.monotonic() - begin_s:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
