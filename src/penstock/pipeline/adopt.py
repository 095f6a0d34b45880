"""Adopt torchvision's datasets and transforms: the same files, draws and pixels, faster.

Rule 1: only exact, unpatched types are adopted. A subclass or a patched method may do anything, so it stays a Python step.
Rule 2: adoption changes no sample. torchvision's own code draws, from torch's generator, on a stand-in image without pixels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from penstock.dataset.offers import Offer, Offers, ReadSeam
from penstock.dataset.unfinished import finished
from penstock.errors import MissingExtra
from penstock.pipeline.begun import Begun
from penstock.pipeline.chain import executed, size_of
from penstock.pipeline.decode import Encoded
from penstock.pipeline.header import BadImage
from penstock.pipeline.staged import unfinished
from penstock.pipeline.their_draws import Draw, Unadoptable, adopters, is_patched, nested
from penstock.sources.sources import ByteRange, WholeFiles
from penstock.transforms.cpu import picture
from penstock.transforms.libs import has_simplejpeg, pillow, warn_without_loops, without_loops
from penstock.transforms.steps import Step, drawn_in_row, program_size
from penstock.transforms.tail import Tail

# ---- chains


def transforms_in(transform: Any) -> list[Any]:
    """Return the transforms of a Compose (v1 or v2), nested ones included. A single transform is a chain of one."""
    name = f"{type(transform).__module__}.{type(transform).__name__}"
    if name in ("torchvision.transforms.transforms.Compose", "torchvision.transforms.v2._container.Compose"):
        return [inner for one in transform.transforms for inner in transforms_in(one)]
    return [] if transform is None else [transform]


LARGE = (6000, 8000)
"""The size of an image larger than any crop."""
ADOPTED_DTYPES = (torch.uint8, torch.float32, torch.float16, torch.bfloat16)
"""Dtypes for which our values equal torchvision's."""


def closing(op: Any, tail: Tail | None) -> Tail | None:
    """Return the tail extended by one closing transform; None if `op` is no closing transform or cannot follow."""
    name = type(op).__name__
    if not type(op).__module__.startswith("torchvision.transforms"):
        return None
    if tail is None:
        if name == "ToTensor":
            return Tail(torch.float32, "divide")
        return Tail() if name in ("ToImage", "PILToTensor", "ToImageTensor") else None
    if name in ("ToDtype", "ConvertImageDtype") and (tail != Tail() or op.dtype not in ADOPTED_DTYPES):
        return None
    if name == "ToDtype":
        return Tail(op.dtype, "multiply" if op.scale and op.dtype.is_floating_point else "")
    if name == "ConvertImageDtype":
        return Tail(op.dtype, "divide") if op.dtype.is_floating_point else None
    if name == "Normalize" and tail.dtype is torch.float32 and not tail.mean and all(op.std):
        return Tail(tail.dtype, tail.scale, tuple(map(float, op.mean)), tuple(map(float, op.std)))
    return None


class AdoptedChain:
    """A torchvision chain: our ops where we have them, Python calls elsewhere, then the tail and the transforms after it."""

    def __init__(self, transform: Any) -> None:
        known = adopters()
        todo = transforms_in(transform)
        self.ops: list[tuple[Any, Draw | None]] = []
        while todo and closing(todo[0], None) is None:
            op = todo.pop(0)
            self.ops.append((op, None if is_patched(op) else known.get(type(op))))
        self.tail: Tail | None = None
        self.closing: list[Any] = []
        """The transforms that the tail replaces, for values that are not Pillow images."""
        while todo and not is_patched(todo[0]) and (further := closing(todo[0], self.tail)) is not None:
            self.tail = further
            self.closing.append(todo.pop(0))
        self.after = todo
        self.check()

    def check(self) -> None:
        """Find unsupported parameters now, not at the first sample."""
        state, known, size = torch.default_generator.get_state(), adopters(), LARGE
        is_grey = False
        for at, (op, draw) in enumerate(self.ops):
            if draw is None:
                continue
            inner = list(nested(op))
            names = {type(part).__name__ for part in inner}
            makes_grey = any(getattr(part, "num_output_channels", 3) == 1 for part in inner)
            try:
                if (is_grey or makes_grey) and names & {"RandomGrayscale", "RGB"}:
                    raise Unadoptable("the channels of a grey image")
                if any(type(part) not in known or is_patched(part) for part in inner):
                    raise Unadoptable("a transform that we do not know within one that we do")
                for part in inner[1:]:
                    known[type(part)](part, size)
                size = program_size(draw(op, size), size)
            except Unadoptable:
                self.ops[at] = (op, None)
            except ValueError:  # for example a crop that is too large: the samples will report it
                continue
            is_grey |= makes_grey
        torch.default_generator.set_state(state)

    def run(self, image: Any, told: Callable[[str], None] | None = None) -> Any:
        """Run the chain on an image; unfinished if nothing follows the tail. `told` is called with each op's name; ops then run one by one."""
        program: list[Step] = []
        size = size_of(image)
        for at, (op, draw) in enumerate(self.ops):
            if draw is not None:
                program += draw(op, program_size(program, size))
            else:
                image, program = op(picture(executed(program, image))), []
                if not is_picture(image):
                    return self.rest(image, [*(other for other, _ in self.ops[at + 1 :]), *self.closing])
                size = (image.height, image.width)
            if told is not None:
                image, program = executed(program, image), []
                size = size_of(image)
                told(type(op).__name__)
        assert self.tail is not None
        pixels = executed(program, image)
        return self.rest(self.tail.finish(pixels), []) if self.after else unfinished(self.tail, pixels)

    def rest(self, value: Any, ops: list[Any]) -> Any:
        for op in [*ops, *self.after]:
            value = op(value)
        return value


def is_picture(value: Any) -> bool:
    """Whether a value is a Pillow image in a mode our ops support; torchvision handles the others."""
    plain = not isinstance(value, (torch.Tensor, np.ndarray)) and hasattr(value, "mode")
    return plain and value.mode in ("L", "RGB")


FIXED = ("Resize", "CenterCrop", "Pad", "Grayscale")
"""Transforms that draw nothing. A chain of only these always decodes exactly."""


class AdoptedFolder(Offers):
    """A torchvision ImageFolder that we read. It follows later changes to the user's dataset."""

    def __init__(self, dataset: Any, chain: AdoptedChain, *, fast: bool = False) -> None:
        self.users_dataset, self.chain, self._transform = dataset, chain, dataset.transform
        random = any(type(op).__name__ not in FIXED for op, _ in chain.ops)
        self.fast, self.bytes_from = fast and random and has_simplejpeg(), WholeFiles()

    def __len__(self) -> int:
        return len(self.users_dataset)

    def locate(self, index: int) -> ByteRange:
        return self.users_dataset.samples[index][0], 0, None

    def read(self, index: int) -> bytes:
        return self.bytes_from.read(*self.locate(index))

    def target_of(self, index: int) -> Any:
        target, transform = self.users_dataset.samples[index][1], self.users_dataset.target_transform
        return target if transform is None else transform(target)

    def encoded(self, data: bytes) -> Encoded:
        """Parse the header. Without simplejpeg, Pillow decodes what the loops leave: by definition torchvision's pixels."""
        return Encoded(data, fast=self.fast, strict=False)

    def offer(self) -> Offer:
        path_of = lambda index: self.locate(index)[0]  # noqa: E731
        tail = None if self.chain.after else self.chain.tail
        return Offer(
            shown=self.users_dataset, get=self._unfinished, path_of=path_of, tail=tail, seam=self.seam()
        )

    def seam(self) -> ReadSeam:
        """Say which files are read. Not those that only torchvision takes, which its own loader opens."""
        dataset = self.users_dataset
        folder = str(dataset.root).rstrip("/")
        endings = tuple(dataset.extensions or ("",))
        return ReadSeam(holder=self, ranges=lambda key: [self.locate(key)], folder=folder, suffixes=endings)

    def __getitem__(self, index: int) -> Any:
        return finished(self._unfinished(index))

    def _unfinished(self, index: int) -> Any:
        dataset = self.users_dataset
        if dataset.transform is not self._transform:
            return dataset[index]
        generator = torch.default_generator.get_state()
        try:
            sample = self.chain.run(self.encoded(self.read(index)))
        except BadImage:
            torch.default_generator.set_state(generator)
            return dataset[index]  # torchvision accepts more files than we do
        return sample, self.target_of(index)

    def begun(self, index: int) -> Begun:
        """Read and draw a sample, but make no pixels. Only for a chain without Python steps."""
        data = self.read(index)
        image: Any
        try:
            image = self.encoded(data)
        except BadImage:
            image = self.forgiven(index)
        draws = ((draw, op) for op, draw in self.chain.ops if draw is not None)
        return Begun(data, image, drawn_in_row(draws, size_of(image)), self.target_of(index))

    def forgiven(self, index: int) -> Any:
        """Decode a file we refuse with the dataset's own loader: torchvision accepts more files than we do."""
        return np.array(self.users_dataset.loader(self.users_dataset.samples[index][0]))


def adopted(dataset: Any, *, fast: bool = False) -> AdoptedFolder | None:
    """Return our version of torchvision's ImageFolder or DatasetFolder; None if it cannot be adopted."""
    found = verdict(dataset, fast=fast)[0]
    if found is not None:
        warn_without_loops()
    return found


def verdict(dataset: Any, *, fast: bool = False) -> tuple[AdoptedFolder | None, str]:
    """Return the adopted dataset, or None and the reason."""
    folder = sys.modules.get("torchvision.datasets.folder")
    if folder is None or type(dataset) not in (folder.ImageFolder, folder.DatasetFolder):
        return (
            None,
            "Give it as penstock.ImageFolder, penstock.TarDataset or penstock.StagedDataset, or as torchvision's ImageFolder.",
        )
    if "__getitem__" in vars(dataset) or type(dataset).__getitem__ is not folder.DatasetFolder.__getitem__:
        return None, "Its __getitem__ has been replaced."
    if dataset.loader is not folder.default_loader or sys.modules["torchvision"].get_image_backend() != "PIL":
        return None, "Its loader is not torchvision's default one."
    if (
        dataset.transform is None
        or dataset.transforms is None
        or dataset.transforms.transform is not dataset.transform
    ):
        return None, "Its transform is missing, or not the one it was made with."
    try:
        pillow()  # now, so that workers inherit it
    except MissingExtra as exc:
        return None, f"It could be adopted, but {exc}"
    chain = AdoptedChain(dataset.transform)
    if chain.tail is None or not any(draw is not None for _, draw in chain.ops):
        return (
            None,
            "None of its transforms works on images before they become tensors, or it never makes tensors.",
        )
    return AdoptedFolder(dataset, chain, fast=fast), ""


def adoption(dataset: Any) -> str:
    """Return one sentence: whether a torchvision dataset is adopted, and why not or why slowly. "" for other datasets."""
    folder = sys.modules.get("torchvision.datasets.folder")
    inner = dataset.dataset if type(dataset) is Subset else dataset
    if folder is None or not isinstance(inner, folder.DatasetFolder):
        return ""
    found, reason = verdict(dataset)
    if found is not None:
        slow = f", but {said}" if (said := without_loops()) else ""
        return f"torchvision's {type(inner).__name__} is adopted: penstock prepares the same pixels{slow}"
    if inner is not dataset:
        reason = "It is a Subset, and only whole datasets are adopted."
    elif type(inner) not in (folder.ImageFolder, folder.DatasetFolder):
        reason = "It is a subclass of torchvision's, which may mean anything."
    return f"{type(inner).__name__} is not adopted, so its samples are prepared by calling it. {reason}"
