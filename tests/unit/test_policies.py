"""Policies draw each op, magnitude and sign with the probability that their papers give them."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from penstock import ConfigError
from penstock.transforms import (
    AugMix,
    AutoAugment,
    ColorJitter,
    RandAugment,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ThreeAugment,
    TrivialAugmentWide,
)
from penstock.transforms.augment import steps_of
from penstock.transforms.draws import Draws
from penstock.transforms.policies import RANDAUGMENT, WIDE
from penstock.transforms.published import AUTOAUGMENT
from penstock.transforms.steps import Code, Step
from tests.torchvision_here import torchvision

COUNT = 100_000
SIZE = (224, 200)


def frequencies(op: object, count: int = COUNT) -> Counter[tuple[Step, ...]]:
    """How often each program was drawn, over as many samples."""
    return Counter(tuple(op.draw(Draws(seed), SIZE)) for seed in range(count))  # type: ignore[attr-defined]


def test_randaugment_draws_its_fourteen_ops_alike_and_both_signs() -> None:
    found = frequencies(RandAugment(num_ops=1))
    expected: Counter[tuple[Step, ...]] = Counter()
    for name, space in RANDAUGMENT.items():
        level = 0.0 if space is None else space.magnitude(9, 31, SIZE)
        signs = (1, -1) if space is not None and space.signed else (1,)
        for sign in signs:
            expected[tuple(steps_of(name, sign * level, SIZE, 0, None))] += COUNT / 14 / len(signs)  # type: ignore[assignment]
    assert set(found) == set(expected)
    chi = sum((found[key] - expected[key]) ** 2 / expected[key] for key in expected)
    assert chi < len(expected) + 4 * math.sqrt(2 * len(expected))


def test_two_ops_of_randaugment_are_drawn_apart() -> None:
    pairs = Counter(
        tuple(step.code for step in RandAugment().draw(Draws(seed), SIZE)) for seed in range(COUNT // 2)
    )
    assert pairs[Code.AUTOCONTRAST, Code.EQUALIZE] == pytest.approx(COUNT / 2 / 196, rel=0.25)
    assert pairs[Code.EQUALIZE, Code.EQUALIZE] == pytest.approx(COUNT / 2 / 196, rel=0.25)


def test_trivialaugment_draws_every_magnitude_alike() -> None:
    found = Counter(
        step.args[0]
        for seed in range(COUNT)
        for step in TrivialAugmentWide().draw(Draws(seed), SIZE)
        if step.code is Code.BRIGHTNESS
    )
    assert len(found) == 61, "31 magnitudes of either sign, and 0 has one"
    assert sum(found.values()) == pytest.approx(COUNT / len(WIDE), rel=0.1)


@pytest.mark.parametrize("policy", sorted(AUTOAUGMENT))
def test_autoaugment_follows_the_published_table(policy: str) -> None:
    found = frequencies(AutoAugment(policy), COUNT // 2)
    nothing = sum((1 - a[1]) * (1 - b[1]) for a, b in AUTOAUGMENT[policy]) / 25
    assert found[()] / (COUNT // 2) == pytest.approx(nothing, abs=0.01)
    equalised = sum(
        1 - (1 - a[1] * (a[0] == "Equalize")) * (1 - b[1] * (b[0] == "Equalize"))
        for a, b in AUTOAUGMENT[policy]
    )
    seen = sum(n for program, n in found.items() if Step(Code.EQUALIZE) in program)
    assert seen / (COUNT // 2) == pytest.approx(equalised / 25, abs=0.01)


@pytest.mark.parametrize("policy", sorted(AUTOAUGMENT))
def test_the_published_table_is_torchvisions(policy: str) -> None:
    torchvision()
    from torchvision.transforms import AutoAugmentPolicy, v2

    assert v2.AutoAugment(AutoAugmentPolicy(policy))._policies == AUTOAUGMENT[policy]


@pytest.mark.parametrize("ours", [RANDAUGMENT, WIDE], ids=["RandAugment", "TrivialAugmentWide"])
def test_magnitudes_are_torchvisions(ours: dict[str, object]) -> None:
    torchvision()
    from torchvision.transforms import v2

    theirs = (v2.RandAugment if ours is RANDAUGMENT else v2.TrivialAugmentWide)._AUGMENTATION_SPACE
    assert list(ours) == list(theirs)
    for name, (magnitudes, signed) in theirs.items():
        space = RANDAUGMENT[name] if ours is RANDAUGMENT else WIDE[name]
        values = magnitudes(31, *SIZE)
        if values is None:
            assert space is None
            continue
        assert space is not None
        assert space.signed == signed
        assert [space.magnitude(at, 31, SIZE) for at in range(31)] == pytest.approx(
            values.tolist(), rel=1e-5, abs=1e-6
        )


def test_augmix_mixes_chains_whose_weights_sum_to_one() -> None:
    for seed in range(500):
        (step,) = AugMix().draw(Draws(seed), SIZE)
        kept, chains = step.args
        assert kept + math.fsum(weight for weight, _ in chains) == pytest.approx(1.0)
        assert len(chains) == 3


def test_three_augment_is_one_of_three_and_then_colours() -> None:
    first = Counter(ThreeAugment().draw(Draws(seed), SIZE)[0].code for seed in range(30_000))
    assert set(first) == {Code.GRAY, Code.SOLARIZE, Code.BLUR}
    assert max(first.values()) - min(first.values()) < 600


def test_crops_have_the_area_and_shape_that_were_asked_for() -> None:
    op = RandomResizedCrop(10, scale=(0.2, 0.5), ratio=(0.5, 2.0))
    places = [op.place(Draws(seed), (400, 400)) for seed in range(20_000)]
    areas = np.array([height * width / 160_000 for _, _, height, width in places])
    shapes = np.array([width / height for _, _, height, width in places])
    assert 0.19 < areas.min() < 0.21
    assert 0.49 < areas.max() < 0.51
    assert areas.mean() == pytest.approx(0.35, abs=0.01)
    assert np.log(shapes).mean() == pytest.approx(0.0, abs=0.02)
    assert all(0 <= top <= 400 - height and 0 <= left <= 400 - width for top, left, height, width in places)


def test_an_image_too_long_for_any_crop_gives_its_middle() -> None:
    assert RandomResizedCrop(10, scale=(1.0, 1.0)).place(Draws(0), (10, 1000)) == (0, 493, 10, 13)


def test_flips_come_with_their_probability() -> None:
    assert sum(bool(RandomHorizontalFlip(0.3).draw(Draws(s), SIZE)) for s in range(COUNT)) == pytest.approx(
        30_000, abs=600
    )


def test_erasing_stays_inside() -> None:
    for seed in range(2000):
        for step in RandomErasing(p=1.0).draw(Draws(seed), SIZE):
            top, left, height, width, value, _ = step.args
            assert top + height <= SIZE[0]
            assert left + width <= SIZE[1]
            assert value == 0


def test_jitter_draws_its_four_in_any_order() -> None:
    orders = Counter(
        tuple(step.code for step in ColorJitter(0.1, 0.1, 0.1, 0.1).draw(Draws(s), SIZE))
        for s in range(24_000)
    )
    assert len(orders) == 24
    assert min(orders.values()) > 800


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandAugment(magnitude=31),
        lambda: AutoAugment("mnist"),
        lambda: AugMix(severity=0),
        lambda: ColorJitter(hue=0.7),
        lambda: ColorJitter(brightness=-1),
        lambda: RandomHorizontalFlip(1.5),
    ],
)
def test_parameters_that_make_no_sense_are_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]
