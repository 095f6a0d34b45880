"""Images with masks, boxes and labels: one draw moves them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.dataset.seeding import call_seed, company
from penstock.errors import ConfigError
from penstock.pipeline.header import MAX_PIXELS
from penstock.pipeline.staged import StagedDataset

KINDS = frozenset({"masks", "boxes", "labels"})


class AnnotatedDataset(StagedDataset):
    """Images with masks, boxes and labels, all transformed by the same draw.

    `read(index)` returns (bytes, {"masks": ..., "boxes": ..., "labels": ...}); each entry may be None or absent. Items are (image,
    {name: tensor}).

    `masks`: integers, height x width or objects x height x width. `boxes`: objects x 4, x1 y1 x2 y2 in pixels. `labels`: one per
    box. Boxes left with less than a pixel a side are dropped, with their labels and per-object masks.
    """

    def __init__(
        self,
        read: Callable[[int], tuple[bytes, Mapping[str, Any]]],
        chain: Any = None,
        length: int = 0,
        *,
        decoder: Callable[[bytes], Any] | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        super().__init__(read, chain, length, decoder=decoder, max_pixels=max_pixels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        data, targets = self.read(index % len(self))
        if unknown := set(targets) - KINDS:
            raise ConfigError(
                f"a sample may have {', '.join(sorted(KINDS))}, not {', '.join(map(repr, unknown))}"
            )
        return self.chain.run_with(self.image(data), call_seed("staged"), company(), **targets)
