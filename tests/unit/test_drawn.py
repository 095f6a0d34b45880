"""Which outcome an op has drawn: as many different ones as are counted, told by the draws that a sample gets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from penstock import transforms as T
from penstock.transforms.drawn import TOLD, Noted, chain_outcome, drawn, number_of, sound_outcome
from penstock.transforms.draws import Draws
from penstock.transforms.outcomes import COUNTS, VALUES, outcomes

SIZE = (33, 32)
DEEP = T.DeepAutoAugment(
    [
        [(0.5, "RandFlip", None), (0.5, "Rotate", 0.3)],
        [(0.3, "RandCrop", None), (0.3, "RandCutout", None), (0.4, "ShearX", 0.2)],
    ]
)
FEW = [
    T.RandomHorizontalFlip(),
    T.RandomVerticalFlip(0.2),
    T.RandomGrayscale(),
    T.RandomCrop(30),
    T.RandomCrop(30, padding=2),
    T.ColorJitter(0.4),
    T.ColorJitter(brightness=(0.5, 0.5)),
    T.GaussianBlur(5),
    T.GaussianBlur(5, sigma=1.0),
    T.RandomApply([T.RandomCrop(31)], p=0.4),
    T.RandomApply([T.ColorJitter(0.4), T.RandomHorizontalFlip()]),
    T.RandomChoice([T.RandomHorizontalFlip(), T.RandomCrop(31)]),
    T.RandomChoice([T.RandomGrayscale(), T.RandomHorizontalFlip()]),
    T.Compose([T.RandomCrop(32), T.RandomCrop(30)]),
    T.PerBatch([T.RandomHorizontalFlip(), T.RandAugment(1)]),
    T.AutoAugment("cifar10"),
    T.TrivialAugmentWide(),
    T.RandAugment(1),
    T.RandAugment(2),
]
MANY = [
    T.RandomResizedCrop(24),
    T.ColorJitter(0.4, 0.4, hue=0.1),
    T.RandomErasing(),
    T.ThreeAugment(),
    T.AugMix(),
    DEEP,
]
NONE = [T.Resize(20), T.CenterCrop(20), T.Pad(3), T.Grayscale(), T.Lambda(np.copy)]


def named(op: Any) -> str:
    return str(op.name)


@pytest.mark.parametrize("op", FEW, ids=named)
def test_of_few_outcomes_all_are_drawn_and_no_others(op: Any) -> None:
    found = {repr(drawn(op, Noted(seed), SIZE)[0]) for seed in range(12_000)}
    # Two magnitudes of a policy that come to the same are told apart by chance only; a pair that is left out in two ways is one.
    assert 0.98 * outcomes(op, SIZE) <= len(found) <= outcomes(op, SIZE)


@pytest.mark.parametrize("op", MANY, ids=named)
def test_of_many_outcomes_no_more_are_drawn_than_are_counted(op: Any) -> None:
    """Seen by how often two draws of 3,000 are alike; of outcomes that are not equally likely, more often."""
    count = 3000
    found = {repr(drawn(op, Noted(seed), SIZE)[0]) for seed in range(count)}
    every = float(outcomes(op, SIZE))
    expected = -every * math.expm1(count * math.log1p(-1 / every)) if every < 1e15 else count
    assert len(found) <= expected + 5 * math.sqrt(max(1.0, count - expected))
    assert len(found) > (50 if op is DEEP else 300)


@pytest.mark.parametrize("op", NONE, ids=named)
def test_what_counts_once_is_told_once(op: Any) -> None:
    assert {repr(drawn(op, Noted(seed), SIZE)[0]) for seed in range(30)} == {"()"}


@pytest.mark.parametrize("op", [*FEW, *MANY, *NONE], ids=named)
@pytest.mark.parametrize("seed", [0, 7, 2**63 + 5])
def test_what_is_drawn_is_what_a_sample_gets(op: Any, seed: int) -> None:
    assert drawn(op, Noted(seed), SIZE)[1] == op.draw(Draws(seed), SIZE)


def test_whatever_has_several_outcomes_can_tell_them() -> None:
    containers = {T.Compose, T.RandomApply, T.RandomChoice, T.PerBatch, T.DeepAutoAugment}
    sound = {T.AddNoise, T.Gain, T.PadOrCut, T.SpecAugment}
    elsewhere = {T.MultiCrop, T.MixUp, T.CutMix}  # several views, whole batches: never used with reuse
    once = {kind for kind, count in COUNTS.items() if count.__name__ == "one"}
    assert set(COUNTS) - once == set(TOLD) | containers | sound | elsewhere


def test_the_outcome_of_a_chain_is_a_number_that_all_processes_agree_on() -> None:
    ops = [T.RandAugment(2), T.RandomCrop(30), T.RandomHorizontalFlip()]
    assert number_of([(3, 1), (2, 0), True]) == 16_107_371_258_018_616_692
    whole = {chain_outcome(ops, seed, SIZE, None, 0, 3) for seed in range(500)}
    assert len(whole) > 450
    assert len({chain_outcome(ops, seed, SIZE, None, 2, 3) for seed in range(500)}) == 2
    assert len({chain_outcome(ops, seed, SIZE, None, 3, 3) for seed in range(500)}) == 1


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (T.Gain((-6, 6)), VALUES),
        (T.Gain(3), 1),
        (T.AddNoise((0, 20)), VALUES),
        (T.PadOrCut(100), VALUES),
        (T.PadOrCut(500), 1),
        (T.LogMel(16_000), 1),
        (T.SpecAugment(freq_mask=3, num_freq_masks=1, num_time_masks=0), 4 * VALUES),
        (T.SpecAugment(time_mask=40, num_freq_masks=0, num_time_masks=1), VALUES**2),
        (T.SpecAugment(time_warp=5, num_freq_masks=0, num_time_masks=0), VALUES**2),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else "",
)
def test_sound_has_as_many_outcomes_as_are_counted(op: Any, wanted: int) -> None:
    shape = (80, 300)
    found = {repr(sound_outcome(op, op.draw(Draws(seed), shape), shape)) for seed in range(8000)}
    assert len(found) == wanted
