"""The cases of `scripts/bench sim_ranks`: ranks of one machine and what they have to prepare."""

from __future__ import annotations

from dataclasses import replace

from penstock.sim.rank_load import RankLoad

PHOTOS = RankLoad(steps=160)
"""8 ranks with 8 workers, batches of 64 photos of 1.5 ms: 12 ms a step if all cores work."""
CHAINS = RankLoad(steps=120, costs="chains", sample_s=0.005)
DEAR = RankLoad(steps=120, dear=(3.0,), sample_s=0.005)
PAPER = RankLoad(ranks=6, workers=5, steps=120, costs="chains", sample_s=0.0066)
"""FusionFlow's 32 cores for 6 GPUs, and W3 with Pillow on one of them."""
PREPARING = PAPER.batch_size * PAPER.sample_s / PAPER.workers
"""Seconds in which all cores prepare a step of it."""

RULES = {
    "8 x 8, photos": PHOTOS,
    "… 256 a batch": replace(PHOTOS, batch_size=256, steps=80),
    "… 64, training takes 95 % of a step": replace(PHOTOS, train_s=0.95 * 0.012),
    "8 x 8, RandAugment as measured": replace(PHOTOS, costs="augmented", sample_s=0.002),
    "8 x 8, RandAugment as in the paper": CHAINS,
    "… the same, training takes 95 % of a step": replace(CHAINS, train_s=0.95 * 0.04),
    "8 x 8, 1 sample of 100 takes 50 times as long": replace(DEAR, dear=(), costs="tail"),
    "2 x 1, one rank three times as dear": replace(DEAR, ranks=2, workers=1),
    "4 x 3, one rank three times as dear": replace(DEAR, ranks=4, workers=3),
    "8 x 8, one rank three times as dear": DEAR,
    "… photos of 1.5 ms": replace(DEAR, sample_s=0.0015),
    "… 5 ms, training takes 95 % of a step": replace(DEAR, train_s=0.95 * 0.05),
    "8 x 8, training takes 4 times as long as photos": replace(PHOTOS, train_s=0.048, steps=80),
}
SIZES, WINDOWS = (32, 64, 256), (2, 4, 16)
GRID = {
    (size, window): replace(PHOTOS, batch_size=size, window=window, steps=max(40, 5120 // size))
    for size in SIZES
    for window in WINDOWS
}
FIGURE = {
    (share, window): replace(PAPER, window=window, train_s=share * PREPARING)
    for share in (0.0, 0.9)
    for window in (1, 2, 4)
}
