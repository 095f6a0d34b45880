"""The choice of a split, against a search that tries everything; and ops that may change places, against pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import transforms as T
from penstock.errors import ConfigError
from penstock.policy.diversity import diversity
from penstock.policy.split import (
    FASTER,
    ChainOp,
    Costs,
    Terms,
    choose,
    interchangeable,
    latest,
    reorderings,
    splits,
)
from penstock.transforms.cpu import execute
from penstock.transforms.draws import Draws
from penstock.transforms.outcomes import kinds
from tests.kernel_cases import photo

pytest.importorskip("cv2")

CROP = ChainOp(name="crop", outcomes=49, cost_s=1e-4, kinds=frozenset({"crop"}))
FLIP = ChainOp(name="flip", outcomes=2, cost_s=1e-4, kinds=frozenset({"flip"}))
COLOURS = ChainOp(name="colours", outcomes=4096, cost_s=5e-3, kinds=frozenset({"pixel"}))
LAYER = ChainOp(name="layer", outcomes=14, cost_s=1e-3)
TWICE = Terms(times=2)

SETTINGS = settings(deadline=None)


@st.composite
def chains(draw: st.DrawFn) -> list[ChainOp]:
    return [
        ChainOp(
            name=f"op {at}",
            outcomes=draw(st.sampled_from([1, 2, 2, 14, 49, 196, 65_536])),
            cost_s=draw(st.floats(0, 1e-2)),
            anew=draw(st.sampled_from(["", "", "", "", "it is yours"])),
        )
        for at in range(draw(st.integers(0, 6)))
    ]


TERMS = st.builds(
    Terms,
    times=st.integers(1, 6),
    min_diversity=st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99]),
    epochs=st.integers(1, 200),
    min_log_ratio=st.sampled_from([0.0, 0.4]),
)


def searched(parts: Sequence[ChainOp], costs: Costs, terms: Terms) -> int | None:
    """By the words of the rules, one split after the other."""
    best: tuple[float, int] | None = None
    if terms.times == 1:
        return None
    for at in range(len(costs.final_s)):
        every, final = math.prod(p.outcomes for p in parts), math.prod(p.outcomes for p in parts[at:])
        ratio = math.log(final) / math.log(every) if every > 1 else 1.0
        cost_s = costs.final_s[at] + costs.partial_s[at] / terms.times + costs.read_s[at]
        faster = costs.whole_s / cost_s > FASTER if cost_s else costs.whole_s > 0
        if not faster or any(part.anew for part in parts[:at]) or ratio <= terms.min_log_ratio:
            continue
        if diversity(every, final, terms.times, terms.epochs) < terms.min_diversity:
            continue
        if best is None or (cost_s, -at) < (best[0], -best[1]):
            best = (cost_s, at)
    return None if best is None else best[1]


@SETTINGS
@given(chains(), TERMS, st.data())
def test_the_choice_is_that_of_a_search_that_tries_everything(
    parts: list[ChainOp], terms: Terms, data: st.DataObject
) -> None:
    """With costs that need not add up, as measured ones."""
    seconds = st.lists(st.floats(0, 1e-2), min_size=len(parts) + 1, max_size=len(parts) + 1)
    partial, final, read = (tuple(data.draw(seconds)) for _ in range(3))
    costs = Costs(whole_s=data.draw(st.floats(1e-6, 1e-2)), partial_s=partial, final_s=final, read_s=read)
    taken = choose(parts, costs, terms).split
    assert (None if taken is None else taken.at) == searched(parts, costs, terms)


@SETTINGS
@given(chains(), TERMS, st.floats(0, 1e-2))
def test_where_costs_add_up_it_is_the_cheapest_final_part(
    parts: list[ChainOp], terms: Terms, before_s: float
) -> None:
    costs = Costs.added(parts, before_s=before_s)
    choice = choose(parts, costs, terms)
    table = splits(parts, costs, terms) if terms.times > 1 else []
    fit = [split for split in table if not split.refused and split.speed_up > FASTER]
    if choice.split is None:
        assert not fit
        assert choice.why
    else:
        assert choice.split.final_s <= min(split.final_s for split in fit) * (1 + 1e-9)


@SETTINGS
@given(chains(), TERMS)
def test_the_latest_split_is_admissible_and_none_behind_it_is(parts: list[ChainOp], terms: Terms) -> None:
    table = splits(parts, Costs.added(parts), terms)
    admissible = [split.at for split in table if split.at and not split.refused]
    assert latest(parts, terms) == max(admissible, default=0)


def test_the_papers_split_keeps_the_layers_and_draws_crop_and_flip_anew() -> None:
    parts = [LAYER, LAYER, CROP, FLIP]
    choice = choose(parts, Costs.added(parts, before_s=1e-3), Terms(times=3))
    assert choice.split is not None
    assert (choice.split.at, choice.split.behind) == (2, "layer")
    assert choice.split.speed_up == pytest.approx(3.2 / (0.2 + 1))
    assert choice.split.saved_s == pytest.approx(3e-3)
    assert "behind flip" in choice.why


def test_an_op_that_must_be_done_anew_bounds_the_split() -> None:
    parts = [
        LAYER,
        ChainOp(name="mine", outcomes=1, cost_s=1e-3, anew="a function of yours"),
        LAYER,
        CROP,
        FLIP,
    ]
    choice = choose(parts, Costs.added(parts), TWICE)
    assert choice.split is not None
    assert choice.split.at == 1
    assert (
        splits(parts, Costs.added(parts), TWICE)[3].refused == "mine must be done anew: a function of yours"
    )


def test_where_nothing_is_random_everything_is_kept() -> None:
    parts = [ChainOp(name="resize", outcomes=1, cost_s=1e-3)]
    choice = choose(parts, Costs.added(parts, before_s=1e-3), TWICE)
    assert choice.split is not None
    assert (choice.split.at, choice.split.diversity, choice.split.log_ratio) == (1, 1.0, 1.0)


@pytest.mark.parametrize(
    ("parts", "terms", "read_s", "why"),
    [
        ([CROP, FLIP, COLOURS], Terms(times=1), 0.0, "used once"),
        ([CROP, FLIP], TWICE, 1.0, "no split is faster"),
        ([FLIP, FLIP], Terms(times=9, min_diversity=1.0, min_log_ratio=1.0), 0.0, "not admissible"),
    ],
)
def test_where_nothing_is_kept_it_says_why(
    parts: list[ChainOp], terms: Terms, read_s: float, why: str
) -> None:
    choice = choose(parts, Costs.added(parts, before_s=1e-3, read_s=read_s), terms)
    assert choice.split is None
    assert why in choice.why


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Terms(times=2, min_diversity=1.5)
    with pytest.raises(ConfigError, match="at least 1"):
        Terms(times=0)
    with pytest.raises(ConfigError, match="outcome"):
        ChainOp(name="none", outcomes=0)
    with pytest.raises(ConfigError, match="splits"):
        splits([FLIP], Costs.added([FLIP, FLIP]), TWICE)


# ---- another order


def test_a_dear_op_behind_a_cheap_diverse_one_is_better_before_it() -> None:
    crop = replace(CROP, outcomes=3_000)
    parts = [crop, COLOURS, FLIP]
    (one, *others) = reorderings(parts, Terms(times=3), before_s=2e-3)
    assert (one.at, one.first, one.second) == (0, "crop", "colours")
    assert not others
    assert one.choice.split is not None
    assert one.choice.split.behind == "colours"
    better = choose([COLOURS, crop, FLIP], Costs.added([COLOURS, crop, FLIP], before_s=2e-3), Terms(times=3))
    now = choose(parts, Costs.added(parts, before_s=2e-3), Terms(times=3))
    assert better.split is not None
    assert now.split is not None
    assert one.gain == pytest.approx(better.split.speed_up / now.split.speed_up)


def test_what_is_in_the_best_order_or_cannot_be_exchanged_is_left() -> None:
    assert reorderings([COLOURS, CROP, FLIP], TWICE, before_s=2e-3) == []
    assert reorderings([CROP, LAYER, COLOURS], TWICE, before_s=2e-3) == []
    assert reorderings([], TWICE) == []


OPS: dict[str, Any] = {
    "flip": T.RandomHorizontalFlip(),
    "upside down": T.RandomVerticalFlip(),
    "crop": T.RandomCrop(30),
    "padded crop": T.RandomCrop(30, padding=4, fill=100),
    "resized crop": T.RandomResizedCrop(30),
    "grey": T.RandomGrayscale(0.5),
    "colours": T.ColorJitter(0.4, 0, 0.4, 0.2),
    "contrast": T.ColorJitter(contrast=0.4),
    "colours at times": T.RandomApply([T.ColorJitter(0.5), T.Grayscale(3)], p=0.6),
    "one of several": T.RandomChoice([T.ColorJitter(0.5), T.ColorJitter(saturation=0.5)]),
    "erasing": T.RandomErasing(1.0),
    "blur": T.GaussianBlur(5),
    "RandAugment": T.RandAugment(),
}


def part(op: Any) -> ChainOp:
    return ChainOp(name=op.name, outcomes=2, kinds=kinds(op))


def both_ways(one: Any, other: Any, image: Any, seed: int) -> tuple[Any, Any]:
    """An image after both ops, in either order, each with draws of its own."""

    def done(op: Any, image: Any, seed: int) -> Any:
        return execute(op.draw(Draws(seed), image.shape[:2]), image)

    first, second = 2 * seed, 2 * seed + 1
    return done(other, done(one, image, first), second), done(one, done(other, image, second), first)


def test_ops_that_may_change_places_give_the_same_pixels_for_the_same_draws() -> None:
    exchanged = []
    for one, other in product(OPS, repeat=2):
        if interchangeable(part(OPS[one]), part(OPS[other])):
            exchanged.append((one, other))
            for seed in range(12):
                there, back = both_ways(
                    OPS[one], OPS[other], photo(seed, ((40, 52), (61, 37))[seed % 2]), seed
                )
                assert np.array_equal(there, back), (one, other, seed)
    moved = {frozenset(pair) for pair in exchanged}
    assert frozenset({"flip", "upside down"}) in moved
    assert {
        frozenset({"crop", name}) for name in ("grey", "colours", "colours at times", "one of several")
    } <= moved
    assert all(
        {"RandAugment", "contrast", "padded crop", "resized crop", "erasing", "blur"}.isdisjoint(pair)
        for pair in moved
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [("crop", "contrast"), ("flip", "crop"), ("crop", "RandAugment"), ("colours", "contrast"), ("padded crop", "colours"),
     ("resized crop", "colours"), ("flip", "erasing")],
)  # fmt: skip
def test_others_do_not(one: str, other: str) -> None:
    """So that the list is not longer than it may be."""
    assert not interchangeable(part(OPS[one]), part(OPS[other]))
    results = [both_ways(OPS[one], OPS[other], photo(seed, (40, 52)), seed) for seed in range(12)]
    assert not all(np.array_equal(there, back) for there, back in results)
