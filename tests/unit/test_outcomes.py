"""How many different results each op has: known numbers, and an answer for every op that there is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from penstock import transforms as T
from penstock.transforms.audio import Function
from penstock.transforms.base import Op
from penstock.transforms.draws import Draws
from penstock.transforms.foreign import Foreign
from penstock.transforms.outcomes import (
    COUNTS,
    NOMINAL,
    OTHER,
    VALUES,
    kinds,
    outcomes,
    outcomes_in_row,
    size_behind,
)
from penstock.transforms.steps import Program, Size

V = VALUES


def same(image: Any) -> Any:
    return image


@pytest.mark.parametrize("name", [name for name in T.__all__ if name not in ("Op", "InterpolationMode")])
def test_every_op_has_an_answer(name: str) -> None:
    assert getattr(T, name) in COUNTS


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (T.Resize(256), 1),
        (T.CenterCrop(224), 1),
        (T.Pad(4), 1),
        (T.Grayscale(), 1),
        (T.ToImage(), 1),
        (T.ToDtype(torch.float32, scale=True), 1),
        (T.Normalize([0.5], [0.5]), 1),
        (T.RandomHorizontalFlip(), 2),
        (T.RandomHorizontalFlip(0.0), 1),
        (T.RandomHorizontalFlip(1.0), 1),
        (T.RandomVerticalFlip(0.1), 2),
        (T.RandomGrayscale(), 2),
        (T.RandomCrop(32), (64 - 31) * (48 - 31)),
        (T.RandomCrop((64, 48), padding=3), 49),
        (T.RandomCrop(64, pad_if_needed=True), 1 * 17),
        (T.RandomResizedCrop(24), V**4),
        (T.RandomResizedCrop(24, ratio=(1.0, 1.0)), V**3),
        (T.RandomResizedCrop(24, scale=(1.0, 1.0), ratio=(1.0, 1.0)), 1),
        (T.ColorJitter(), 1),
        (T.ColorJitter(0.4), V),
        (T.ColorJitter(0.4, 0.4, hue=0.1), 6 * V**3),
        (T.ColorJitter(brightness=(0.5, 0.5)), 1),
        (T.GaussianBlur(5), V),
        (T.GaussianBlur(5, sigma=1.0), 1),
        (T.RandomErasing(), 1 + V**4),
        (T.RandomErasing(p=1.0, value="random"), V**4),
        (T.RandomErasing(p=0.0), 1),
        (T.Lambda(same), 1),
        (Foreign(same), 1),
        (T.Compose([T.RandomHorizontalFlip(), T.RandomVerticalFlip()]), 4),
        (T.Compose([T.RandomCrop(32), T.RandomCrop(30)]), 33 * 17 * 9),
        (T.RandomApply([T.GaussianBlur(5)]), 1 + V),
        (T.RandomApply([T.Lambda(same)]), 2),
        (T.RandomApply([T.RandomHorizontalFlip()], p=1.0), 2),
        (T.RandomChoice([T.RandomHorizontalFlip(), T.Grayscale(3), T.GaussianBlur(3)]), 3 + V),
        (T.RandomChoice([T.RandomHorizontalFlip(), T.Grayscale(3)], p=[0.0, 1.0]), 1),
        (T.PerBatch([T.RandomHorizontalFlip(), T.RandAugment(1)]), 28),
        (
            T.MultiCrop([(T.RandomHorizontalFlip(), 2), ([T.RandomVerticalFlip(), T.RandomGrayscale()], 3)]),
            2**2 * 4**3,
        ),
        (T.RandAugment(), 14 * 14),
        (T.RandAugment(3, 5), 14**3),
        (T.RandAugment(0), 1),
        (T.ThreeAugment(), (2 + V) * 6 * V**3),
        (
            T.DeepAutoAugment([[(0.5, "RandFlip", None), (0.5, "Rotate", 0.3)], [(1.0, "RandCrop", None)]]),
            3 * 81,
        ),
        (T.MixUp(), V),
        (T.CutMix(), V**3),
        (T.Resample(16_000, 8_000), 1),
        (T.Gain((-6, 6)), V),
        (T.Gain(3), 1),
        (T.AddNoise((0, 20)), V),
        (T.PadOrCut(8_000), V),
        (T.LogMel(16_000), 1),
        (T.SpecAugment(freq_mask=3, num_freq_masks=1, num_time_masks=1), (4 * V) * (V * V)),
        (T.SpecAugment(time_warp=5, num_freq_masks=0, num_time_masks=0), V**2),
        (Function(same), 1),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else "",
)
def test_known_numbers(op: Any, wanted: int) -> None:
    assert outcomes(op, (64, 48)) == wanted


def test_ops_by_users_count_once_those_derived_from_ours_too() -> None:
    class Own(Op):
        is_random = True

        def draw(self, draws: Draws, size: Size) -> Program:
            return []

    class Cunning(T.RandomHorizontalFlip):
        pass

    assert outcomes(Own()) == outcomes(Cunning()) == 1
    assert kinds(Cunning()) == {OTHER}


def test_autoaugments_pairs_are_counted_by_what_is_left_of_them() -> None:
    found = {policy: outcomes(T.AutoAugment(policy)) for policy in ("imagenet", "cifar10", "svhn")}
    assert all(25 < count < 25 * 4 for count in found.values()), found


def test_augmix_has_more_outcomes_than_a_training_will_ever_see() -> None:
    assert outcomes(T.AugMix()) > 10**15
    assert outcomes(T.AugMix(mixture_width=1, chain_depth=1, severity=1)) == V * 13


def test_crops_are_counted_on_what_the_ops_before_them_leave() -> None:
    ops = [T.Resize((40, 40)), T.RandomCrop(32), T.RandomCrop(32), T.RandomHorizontalFlip()]
    assert outcomes_in_row(ops) == [1, 81, 1, 2]
    assert outcomes(T.RandomCrop(224)) == (NOMINAL[0] - 223) * (NOMINAL[1] - 223)


def test_an_op_that_refuses_a_size_leaves_it() -> None:
    assert size_behind(T.RandomCrop(100), (50, 50)) == (50, 50)
    assert size_behind(T.ToTensor(), (50, 50)) == (50, 50)
    assert size_behind(T.Gain(3), (2, 16_000)) == (2, 16_000)
    assert outcomes(T.RandomCrop(100), (50, 50)) == 1


def test_what_may_do_anything_else_is_of_no_kind_that_changes_places() -> None:
    for op in (
        T.RandAugment(),
        T.RandomResizedCrop(8),
        T.RandomCrop(8, padding=1),
        T.ColorJitter(contrast=0.1),
        T.CenterCrop(4),
    ):
        assert kinds(op) == {OTHER}
    assert OTHER in kinds(T.RandomApply([T.RandomHorizontalFlip(), T.RandomErasing()]))
    assert kinds(T.RandomApply([])) == kinds(T.PerBatch(T.RandomHorizontalFlip())) == {OTHER}
