"""Staged datasets: each sample is bytes, a decoder and a chain of ops, so its cost and other places to prepare it are known. To a loader they
are ordinary map-style datasets of (tensor, target)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import getitem
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from penstock.dataset.costs import KnownCosts, file_bytes
from penstock.dataset.offers import Offer, Offers, ReadSeam
from penstock.dataset.seeding import call_seed, company
from penstock.dataset.unfinished import Unfinished, finished
from penstock.errors import ConfigError
from penstock.pipeline.begun import Begun
from penstock.pipeline.chain import Chain, calls, executed, size_of
from penstock.pipeline.decode import Encoded, Image
from penstock.pipeline.deferred import Deferred, Form
from penstock.pipeline.folders import FileTree, files_digest, listed_costs
from penstock.pipeline.header import MAX_PIXELS, BadImage
from penstock.sources.anywhere import local_path
from penstock.sources.sources import ByteRange, Source, WholeFiles, shown
from penstock.transforms.libs import IMAGE_LIBRARIES, preload, simplejpeg, warn_without_loops
from penstock.transforms.tail import Tail

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp")


class Naming:
    """A context that adds the sample's name to a bad image's error."""

    __slots__ = ("_dataset", "_sample")

    def __init__(self, dataset: StagedDataset, sample: int) -> None:
        self._dataset, self._sample = dataset, sample

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if isinstance(exc, BadImage):
            exc.add_note(f"penstock: {self._dataset.name(self._sample)}")


class StagedDataset(Dataset[tuple[Any, Any]], Offers):
    """A dataset whose samples are read as (bytes, target), decoded, and prepared by a chain of ops.

    `read(index)` returns (bytes, target). `chain` is an op of `penstock.transforms`, a list of them, or None. `decoder(bytes)` returns
    uint8, height x width x channels; the default decodes JPEG, PNG and WebP and refuses images above `max_pixels`. `fast_decode` reads JPEG
    files only as far as a sample needs (damage beyond goes unnoticed) and decodes at reduced scale where most of an image is downsized by
    half or more; it has no effect without random ops in the chain.

    Your own `read` does not say where its bytes are. A subclass can: pass `read=None`, define `locate(index)` and `target_of(index)`, and
    set `bytes_from`.
    """

    def __init__(
        self,
        read: Callable[[int], tuple[bytes, Any]] | None,
        chain: Any = None,
        length: int = 0,
        *,
        decoder: Callable[[bytes], Any] | None = None,
        max_pixels: int = MAX_PIXELS,
        fast_decode: bool = False,
    ) -> None:
        if length < 0:
            raise ConfigError(f"length must not be negative, got {length}")
        self.read: Callable[[int], tuple[bytes, Any]] = self.read_located if read is None else read
        self.chain, self.length = chain if isinstance(chain, Chain) else Chain.of(chain), length
        self.decoder, self.max_pixels = decoder, max_pixels
        self.fast_decode = fast_decode and self.chain.is_random
        if self.fast_decode:
            simplejpeg("fast_decode=True")
        if decoder is None:
            warn_without_loops()

    def offer(self) -> Offer:
        return Offer(
            shown=self,
            get=partial(getitem, self) if self.has_own_items else self._unfinished,
            drawn_first=self.deferred,
            load=self._load,
            path_of=self._path,
            tail=self.chain.tail
            if self.chain.is_one_program and not (self.after or self.has_own_items)
            else None,
            seam=self.seam() if self.is_located and not self.has_own_items else None,
            costs=self._costs() if self.is_located else None,
        )

    @property
    def has_own_items(self) -> bool:
        """Whether a subclass overrides `__getitem__`, which may then do anything."""
        return type(self).__getitem__ is not StagedDataset.__getitem__

    def _path(self, index: int) -> str:
        return shown(self.locate(index)[0])

    def _costs(self) -> KnownCosts:
        return file_bytes(self.locate, lambda: self.bytes_from)

    def _load(self) -> None:
        if self.chain.ops or self.chain.views:
            chains = (self.chain, *self.chain.views)
            blurs = any(needs_opencv(op) for chain in chains for op in chain.ops)
            preload((*IMAGE_LIBRARIES, "cv2") if blurs else IMAGE_LIBRARIES)

    after: tuple[Callable[[Any], Any], ...] = ()
    """Functions to call on the finished tensor, if the chain is one program; adopted datasets may have them."""
    bytes_from: Source = WholeFiles()
    knows_targets = False
    """Whether `target_of` returns a target without reading anything."""

    @property
    def is_located(self) -> bool:
        """Whether samples are read from where `locate` says; a user's `read` may do anything."""
        return self.read == self.read_located

    def locate(self, index: int) -> ByteRange:
        """Return where a sample's bytes are (located datasets only); `index` is not negative."""
        raise NotImplementedError(f"{type(self).__name__} does not say where its bytes are")

    def target_of(self, index: int) -> Any:
        """Return a sample's target without its bytes (located datasets only)."""
        raise NotImplementedError(f"{type(self).__name__} gives targets together with samples only")

    def read_located(self, index: int) -> tuple[bytes, Any]:
        return self.bytes_from.read(*self.locate(index)), self.target_of(index)

    def seam(self) -> ReadSeam | None:
        """Say which files `locate` may name; None if unknown. Your dataset may override it."""
        return None

    def ranges(self, index: int) -> list[ByteRange]:
        """Return all that `read_located` reads for a sample."""
        return [self.locate(index % len(self))]

    def contents(self) -> str | None:
        """Return a text that changes, in any run, whenever the bytes or target of any sample change; None if unknown. It is the key of samples
        cached for later runs (`Reuse(persistent=True)`). Your dataset may override it."""
        return None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        sample: tuple[Any, Any] = finished(self._unfinished(index))
        return sample

    def _unfinished(self, index: int) -> tuple[Any, Any]:
        """Return the sample with its last step pending, so that a worker can have it written in place."""
        with self.naming(index):
            if self.chain.is_one_program:
                begun = self.begun(index)
                sample: Any = unfinished(self.chain.tail, self.pixels(begun))
                if self.after:
                    sample = sample.tensor()
                    for function in self.after:
                        sample = function(sample)
                return sample, begun.target
            data, target = self.read(index % len(self))
            return self.chain.run(self.image(data), call_seed("staged"), company()), target

    def deferred(self, form: Form | None = None) -> Deferred | None:
        """Return an object that draws all samples of a task first; None if impossible. `form`: how samples are written."""
        return Deferred(self, self.chain.tail, form) if self.chain.is_one_program and not self.after else None

    def naming(self, index: int) -> Naming:
        """Return a context for the work on one sample."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return Naming(self, index % len(self))

    def pixels(self, begun: Begun) -> Image:
        return executed(begun.program, begun.image)

    def begun(self, index: int) -> Begun:
        """Read and draw a sample, but make no pixels. Only for a chain that is one program."""
        data, target = self.read(index % len(self))
        image = self.image(data)
        program = self.chain.draw(call_seed("staged"), size_of(image), company())
        return Begun(data, image, program, target)

    def image(self, data: bytes) -> Any:
        """Return the image in a sample's bytes, decoded or not yet."""
        if self.decoder is not None:
            return self.decoder(data)
        return Encoded(data, max_pixels=self.max_pixels, fast=self.fast_decode)

    def name(self, index: int) -> str:
        """Name a sample in messages."""
        return f"sample {index}"

    def read_header_bytes(self, index: int) -> bytes:
        """Return at least the header bytes of a sample; all its bytes unless a source can do better."""
        return self.read(index)[0]


def unfinished(tail: Tail, pixels: Image) -> Unfinished:
    """Wrap the tail's pending work; refuse now what it could not finish later."""
    tail.check(pixels)
    height, width, channels = pixels.shape
    return Unfinished(tail.dtype, (channels, height, width), partial(tail.finish, pixels), pixels)


class ImageFolder(StagedDataset):
    """Images in one folder per class, `root/class/name.jpg`, found and numbered as torchvision's ImageFolder does.

    `root`: a folder, or a URL of an object store ("s3://bucket/train"), which is listed once.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Any = None,
        target_transform: Callable[[int], Any] | None = None,
        *,
        max_pixels: int = MAX_PIXELS,
        fast_decode: bool = False,
    ) -> None:
        tree = FileTree(os.fspath(root), EXTENSIONS)
        self.root, self.target_transform = tree.root, target_transform
        self.classes, self.class_to_idx = tree.classes()
        found = tree.by_class(self.class_to_idx)
        self.samples = [(str(Path(path)), target) for path, target in found] if tree.is_local else found
        self._listed = tree.digest()
        if not tree.is_local:
            self.bytes_from = tree.source
        self.targets = [target for _, target in self.samples]
        self._sizes = tree.sizes(path for path, _ in self.samples)
        super().__init__(None, transform, len(self.samples), max_pixels=max_pixels, fast_decode=fast_decode)

    def offer(self) -> Offer:
        return replace(super().offer(), draws_alone=self._draws_alone)

    def _costs(self) -> KnownCosts:
        return listed_costs(self._sizes, len(self.samples), super()._costs())

    def seam(self) -> ReadSeam | None:
        root = str(Path(self.root)) if local_path(self.root) is not None else self.root
        folder = "" if root == "." else root
        return ReadSeam(holder=self, ranges=self.ranges, folder=folder, suffixes=EXTENSIONS)

    def _draws_alone(self) -> bool:
        """Inspect the ops once per chain, since this is called for each task."""
        if type(self) is not ImageFolder or self.target_transform is not None:
            return False
        if self.decoder is not None or not self.is_located:
            return False
        if self._looked_at[0] is not self.chain:
            chains = (self.chain, *self.chain.views)
            self._looked_at = self.chain, all(is_ours(op) for chain in chains for op in chain.ops)
        return self._looked_at[1]

    _looked_at: tuple[Chain | None, bool] = None, False
    """A chain, and whether all its ops are ours."""

    def name(self, index: int) -> str:
        return f"sample {index}, {self.samples[index][0]}"

    knows_targets = True

    def locate(self, index: int) -> ByteRange:
        return self.samples[index][0], 0, None

    def target_of(self, index: int) -> Any:
        target = self.samples[index][1]
        return target if self.target_transform is None else self.target_transform(target)

    def contents(self) -> str | None:
        if type(self) is not ImageFolder or not self.is_located:
            return None
        if local_path(self.root) is None:
            return None if self._listed is None else repr((self.root, self._listed))
        return files_digest(path for path, _ in self.samples)


def is_ours(op: Any) -> bool:
    """Whether an op, inner ops included, is from this library and draws from its own seeds."""
    own = type(op).__module__.startswith("penstock.transforms.") and not calls(op)
    return own and all(map(is_ours, getattr(op, "transforms", ())))


def needs_opencv(op: Any) -> bool:
    """Whether an op, inner ops included, needs OpenCV."""
    own = type(op).__name__ in ("GaussianBlur", "ThreeAugment") or getattr(op, "antialias", True) is False
    return own or any(map(needs_opencv, getattr(op, "transforms", ())))
