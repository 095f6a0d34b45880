"""Cases of torchvision's ImageFolder, as the loader finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.integration.digests.case import Case, Keywords
from tests.integration.digests.files import Room
from tests.integration.digests.images import reused
from tests.torchvision_here import torchvision, use_convolutions

MADE_BY = ("numpy", "PIL", "torch", "torchvision", "cpu")


def upside_down(picture: Any) -> Any:
    """A function of the user's, in a chain."""
    return picture.rotate(180)


def chains() -> dict[str, Any]:
    torchvision()
    use_convolutions()
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    tail = [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.3)),
    ]
    return {
        "training": v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), *tail]),
        "training, v1": v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor()]),
        "RandAugment": v2.Compose([v2.RandomResizedCrop(32), v2.RandAugment(), *tail]),
        "AutoAugment": v2.Compose([v2.Resize((40, 40)), v2.AutoAugment(), *tail]),
        "TrivialAugmentWide": v2.Compose(
            [v2.TrivialAugmentWide(), v2.RandomResizedCrop(32), v2.PILToTensor()]
        ),
        "AugMix": v2.Compose([v2.RandomResizedCrop(32), v2.AugMix(severity=8), *tail]),
        "jitter and blur": v2.Compose(
            [v2.Resize((36, 36)), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.GaussianBlur(5), *tail]
        ),
        "turned": v2.Compose(
            [v2.Resize((36, 36)), v2.RandomRotation(30), v2.RandomAffine(10, (0.1, 0.1)), *tail]
        ),
        "with Python in it": v2.Compose([v2.Resize((36, 36)), upside_down, v2.RandomHorizontalFlip(), *tail]),
        "erasing behind": v2.Compose([v2.RandomResizedCrop(32), *tail, v2.RandomErasing(p=1.0)]),
    }


def photos(name: str, **more: Any) -> Callable[[Room], tuple[Any, Keywords]]:
    def make(room: Room) -> tuple[Any, Keywords]:
        chain = chains()[name]
        from torchvision.datasets import ImageFolder

        return ImageFolder(room.photos, chain), {"batch_size": 5, "shuffle": True, **more}

    return make


NAMES = (
    "training", "training, v1", "RandAugment", "AutoAugment", "TrivialAugmentWide", "AugMix", "jitter and blur", "turned",
    "with Python in it", "erasing behind",
)  # fmt: skip


def adopted() -> Iterator[tuple[str, Case]]:
    for name in NAMES:
        yield f"adopted: {name}", Case(make=photos(name), made_by=MADE_BY)
    yield "adopted: shard", Case(make=photos("training", shard=(1, 2), batch_size=2), made_by=MADE_BY)
    yield "adopted: not", Case(make=photos("training", adopt=False), made_by=MADE_BY)
    yield (
        "adopted: fast_decode",
        Case(make=photos("training", adopt="fast_decode"), made_by=(*MADE_BY, "simplejpeg")),
    )
    yield "adopted: reuse", Case(make=reused(photos("RandAugment")), epochs=4, made_by=MADE_BY)
    yield (
        "adopted: reuse on disk",
        Case(make=reused(photos("RandAugment"), disk=True), epochs=4, made_by=MADE_BY),
    )
