"""The table of adopted transforms in docs/transforms.md: what torchvision has, what the code adopts of it, and in which forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.kernels.forms import supported
from penstock.pipeline.their_draws import BOTH, CONTAINERS, KNOWN, NEW, OLD, Unadoptable, adopters
from tests import adoptable
from tests.torchvision_here import torchvision

DOCS = Path(__file__).parents[2] / "docs" / "transforms.md"
BEGIN, END = "<!-- adopted transforms: tests/unit/test_adopted_table.py compares -->", "<!-- end -->"
SIZE = (300, 400)


def rows() -> list[str]:
    """The table, from the code."""
    names = sorted({*BOTH, *NEW, *OLD}, key=str.lower)
    found = ["| adopted | in | GPU | |", "|---|---|---|---|"]
    for name in names:
        versions = "v1, v2" if name in BOTH or (name in NEW and name in OLD) else "v2"
        gpu = "as its parts" if name in CONTAINERS else adoptable.GPU.get(name, "yes")
        found.append(f"| {name} | {versions} | {gpu} | {adoptable.LIMITS.get(name, '')} |".replace("  ", " "))
    found.append(f"| {', '.join(adoptable.CLOSING)} | v1, v2 | yes | the end of the chain, in this order |")
    found += ["", "| called as it is | because it |", "|---|---|"]
    for reason in sorted(set(adoptable.NOT_ADOPTED.values())):
        which = sorted(name for name, why in adoptable.NOT_ADOPTED.items() if why == reason)
        found += [f"| {', '.join(which[at : at + 4])} | {reason} |" for at in range(0, len(which), 4)]
    for reason in sorted(set(adoptable.NOT_ADOPTED_V1.values())):
        which = sorted(name for name, why in adoptable.NOT_ADOPTED_V1.items() if why == reason)
        found.append(f"| {', '.join(which)} of v1 | {reason} |")
    return found


def test_the_documented_table_is_that_of_the_code() -> None:
    text = DOCS.read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    documented = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip().splitlines()
    assert documented == rows(), "\n".join(["docs/transforms.md should say:", *rows()])


def transforms_of(module: Any) -> set[str]:
    """Names of a module's transforms."""
    kinds = {name: kind for name, kind in vars(module).items() if isinstance(kind, type) and name[0] != "_"}
    return set(kinds) - NO_TRANSFORMS


NO_TRANSFORMS = {
    "InterpolationMode",
    "AutoAugmentPolicy",
    "RandomTransforms",
    "Optional",
    "Sequence",
    "Tensor",
}


def test_every_transform_of_torchvisions_is_in_the_table() -> None:
    torchvision()
    from torchvision.transforms import v2

    listed = {*BOTH, *NEW, *adoptable.CLOSING, *adoptable.NOT_ADOPTED}
    there = transforms_of(v2)
    assert there - listed == set(), "torchvision has them, and the table does not"
    assert not ({*BOTH, *NEW} & set(adoptable.NOT_ADOPTED))


def test_every_transform_of_v1_is_adopted_or_said_not_to_be() -> None:
    torchvision()
    from torchvision.transforms import autoaugment, transforms

    there = set(transforms.__all__) | set(autoaugment.__all__)
    listed = {*BOTH, *OLD, *adoptable.CLOSING, *adoptable.NOT_ADOPTED, *adoptable.NOT_ADOPTED_V1}
    assert there - listed - NO_TRANSFORMS == set()


def test_all_that_is_listed_as_adopted_is_there_to_be_adopted() -> None:
    torchvision()
    known = {(kind.__module__.split(".")[2], kind.__name__) for kind in adopters()}
    for module, tables in KNOWN.items():
        version = module.split(".")[2]
        missing = {name for table in tables for name in table if (version, name) not in known}
        assert missing == set(), version


def examples(version: Any) -> dict[str, list[Any]]:
    """Of every adopted transform, with the parameters that draw most."""
    turned = [{"interpolation": version.InterpolationMode.BILINEAR}, {}]
    made = {
        "Resize": [version.Resize(40)], "CenterCrop": [version.CenterCrop(40)], "Pad": [version.Pad(3)],
        "RandomResizedCrop": [version.RandomResizedCrop(40)], "RandomCrop": [version.RandomCrop(40)],
        "RandomHorizontalFlip": [version.RandomHorizontalFlip()], "RandomVerticalFlip": [version.RandomVerticalFlip()],
        "RandomRotation": [version.RandomRotation(30, **given) for given in turned],
        "RandomAffine": [version.RandomAffine(30, (0.1, 0.1), (0.5, 2.0), 9, **given) for given in turned],
        "ColorJitter": [version.ColorJitter(0.4, 0.4, 0.4, 0.4)], "Grayscale": [version.Grayscale(3)],
        "RandomGrayscale": [version.RandomGrayscale()], "GaussianBlur": [version.GaussianBlur(5)],
        "RandomInvert": [version.RandomInvert()], "RandomPosterize": [version.RandomPosterize(3)],
        "RandomSolarize": [version.RandomSolarize(99)], "RandomAutocontrast": [version.RandomAutocontrast()],
        "RandomEqualize": [version.RandomEqualize()], "RandomAdjustSharpness": [version.RandomAdjustSharpness(2)],
        "RandAugment": [version.RandAugment()], "AutoAugment": [version.AutoAugment()],
        "TrivialAugmentWide": [version.TrivialAugmentWide()], "AugMix": [version.AugMix()],
        "Compose": [version.Compose([version.RandomInvert()])], "RandomApply": [version.RandomApply([version.RandomInvert()])],
    }  # fmt: skip
    if hasattr(version, "RandomZoomOut"):
        made |= {
            "RandomResize": [version.RandomResize(30, 50)], "RandomShortestSize": [version.RandomShortestSize(30)],
            "ScaleJitter": [version.ScaleJitter((40, 40))], "RandomZoomOut": [version.RandomZoomOut()],
            "RandomChoice": [version.RandomChoice([version.RandomInvert()])],
            "RandomOrder": [version.RandomOrder([version.RandomInvert()])], "Identity": [version.Identity()], "RGB": [version.RGB()],
        }  # fmt: skip
    return made


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_what_is_adopted_can_be_done_by_the_kernels_as_the_table_says(version: str) -> None:
    torchvision()
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    known, made = adopters(), examples(v1 if version == "v1" else v2)
    assert set(made) == ({*BOTH, *OLD} if version == "v1" else {*BOTH, *NEW})
    for name, ops in made.items():
        for op in ops:
            for seed in range(20):
                torch.manual_seed(seed)
                steps = known[type(op)](op, SIZE)
                assert [why for step in steps if (why := supported(step))] == [], name


def test_the_limits_in_the_table_are_those_of_the_code() -> None:
    torchvision()
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    refused = [
        v2.AugMix(fill=3), v1.AugMix(fill=[3]), v2.AugMix(interpolation="bicubic"), v2.AutoAugment(fill=3), v2.RandAugment(fill=3),
        v2.TrivialAugmentWide(fill=3), v2.Pad(3, fill={torch.Tensor: 3}), v2.RandomAffine(30, fill=0.5), v1.RandomCrop(9, padding=3),
        v2.RandomRotation(30, expand=True), v2.RandomRotation(30, center=(0, 0)), v2.RandomRotation((90, 90)),
        v1.RandomRotation(30, fill=0.5),
    ]  # fmt: skip
    known = adopters()
    for op in refused:
        with pytest.raises(Unadoptable):
            known[type(op)](op, SIZE)
    assert {type(op).__name__ for op in refused} <= set(adoptable.LIMITS)
