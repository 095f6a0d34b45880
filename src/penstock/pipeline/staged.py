"""Staged datasets: their samples are bytes, a decoder and a chain of ops, so that we can see what a sample costs and where
else it could be prepared. To a loader they are ordinary map-style datasets of (tensor, target).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from operator import getitem
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from penstock.dataset.offers import Offer, Offers
from penstock.dataset.seeding import call_seed, company
from penstock.dataset.unfinished import Unfinished, finished
from penstock.errors import ConfigError
from penstock.pipeline.begun import Begun
from penstock.pipeline.chain import Chain, calls, executed, size_of
from penstock.pipeline.decode import Encoded, Image
from penstock.pipeline.deferred import Deferred, Form
from penstock.pipeline.header import MAX_PIXELS, BadImage
from penstock.sources.sources import ByteRange, Source, WholeFiles, shown
from penstock.transforms.libs import IMAGE_LIBRARIES, preload, simplejpeg, warn_without_loops
from penstock.transforms.tail import Tail

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp")


class Naming:
    """A context: a bad image's error says which sample it is."""

    __slots__ = ("_dataset", "_sample")

    def __init__(self, dataset: StagedDataset, sample: int) -> None:
        self._dataset, self._sample = dataset, sample

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if isinstance(exc, BadImage):
            exc.add_note(f"penstock: {self._dataset.name(self._sample)}")


class StagedDataset(Dataset[tuple[Any, Any]], Offers):
    """Samples that `read(index)` gives as (bytes, target), `decoder` turns into pixels, and `chain` prepares.

    `chain` is an op of `penstock.transforms`, a list of them, or None. `decoder(bytes)` gives uint8, height x width x channels;
    by default it reads JPEG, PNG and WebP and refuses images above `max_pixels`. `fast_decode`: JPEG files are read only as far as a
    sample needs them (damage beyond is not noticed), and decoded at a smaller scale where most of an image is reduced by half or
    more; without random ops in the chain it does nothing.

    A `read` of yours does not say where its bytes are. A subclass can: with `read=None` it has `locate(index)` and `target_of(index)`, and
    its bytes come from `bytes_from`.
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
        )

    @property
    def has_own_items(self) -> bool:
        """Whether a subclass has a `__getitem__` of its own: then that counts, and nobody knows what it does."""
        return type(self).__getitem__ is not StagedDataset.__getitem__

    def _path(self, index: int) -> str:
        return shown(self.locate(index)[0])

    def _load(self) -> None:
        if self.chain.ops or self.chain.views:
            chains = (self.chain, *self.chain.views)
            blurs = any(needs_opencv(op) for chain in chains for op in chain.ops)
            preload((*IMAGE_LIBRARIES, "cv2") if blurs else IMAGE_LIBRARIES)

    after: tuple[Callable[[Any], Any], ...] = ()
    """What is called on the finished tensor of a chain that is one program; datasets that we adopt may have such transforms."""
    bytes_from: Source = WholeFiles()
    """Where the bytes of located samples come from."""
    knows_targets = False
    """Whether `target_of` gives a sample's target without reading anything."""

    @property
    def is_located(self) -> bool:
        """Whether samples are read where `locate` says; a `read` of the user's may do anything."""
        return self.read == self.read_located

    def locate(self, index: int) -> ByteRange:
        """Where a sample's bytes are, of a dataset that is located; `index` from 0 on."""
        raise NotImplementedError(f"{type(self).__name__} does not say where its bytes are")

    def target_of(self, index: int) -> Any:
        """A sample's target, apart from its bytes, of a dataset that is located."""
        raise NotImplementedError(f"{type(self).__name__} gives targets together with samples only")

    def read_located(self, index: int) -> tuple[bytes, Any]:
        """What `read` is of such a dataset."""
        return self.bytes_from.read(*self.locate(index)), self.target_of(index)

    def contents(self) -> str | None:
        """A text that is another where the bytes or the target of any sample are, in any run; None where nobody can say. What is kept for
        later runs (`Reuse(persistent=True)`) is found by it; a dataset of yours may have one."""
        return None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        sample: tuple[Any, Any] = finished(self._unfinished(index))
        return sample

    def _unfinished(self, index: int) -> tuple[Any, Any]:
        """The sample, for a worker that has its last step write to where it belongs."""
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
        """What draws the samples of a task first, where that is possible; `form`: what they become."""
        return Deferred(self, self.chain.tail, form) if self.chain.is_one_program and not self.after else None

    def naming(self, index: int) -> Naming:
        """Around what is done for a sample."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return Naming(self, index % len(self))

    def pixels(self, begun: Begun) -> Image:
        """What the program makes of a sample that was begun here."""
        return executed(begun.program, begun.image)

    def begun(self, index: int) -> Begun:
        """The sample up to its pixels; of a chain that is one program."""
        data, target = self.read(index % len(self))
        image = self.image(data)
        program = self.chain.draw(call_seed("staged"), size_of(image), company())
        return Begun(data, image, program, target)

    def image(self, data: bytes) -> Any:
        """The image in the bytes of a sample, decoded or not yet."""
        if self.decoder is not None:
            return self.decoder(data)
        return Encoded(data, max_pixels=self.max_pixels, fast=self.fast_decode)

    def name(self, index: int) -> str:
        """A sample, for messages."""
        return f"sample {index}"

    def read_header_bytes(self, index: int) -> bytes:
        """Bytes of a sample that hold its header at least; all of them, unless a source can do better."""
        return self.read(index)[0]


def unfinished(tail: Tail, pixels: Image) -> Unfinished:
    """What a tail has left to do; refuses now what it could not do then."""
    tail.check(pixels)
    height, width, channels = pixels.shape
    return Unfinished(tail.dtype, (channels, height, width), partial(tail.finish, pixels))


class ImageFolder(StagedDataset):
    """Images in a folder per class, found and numbered as torchvision's ImageFolder does: `root/class/name.jpg`."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Any = None,
        target_transform: Callable[[int], Any] | None = None,
        *,
        max_pixels: int = MAX_PIXELS,
        fast_decode: bool = False,
    ) -> None:
        self.root, self.target_transform = os.fspath(root), target_transform
        self.classes, self.class_to_idx = classes_in(self.root)
        found = files_by_class(self.root, self.class_to_idx, EXTENSIONS)
        self.samples = [(str(Path(path)), target) for path, target in found]
        self.targets = [target for _, target in self.samples]
        super().__init__(None, transform, len(self.samples), max_pixels=max_pixels, fast_decode=fast_decode)

    def offer(self) -> Offer:
        return replace(super().offer(), draws_alone=self._draws_alone)

    def _draws_alone(self) -> bool:
        """Asked for each task, so that ops are looked at once."""
        if type(self) is not ImageFolder or self.target_transform is not None:
            return False
        if self.decoder is not None or not self.is_located:
            return False
        if self._looked_at[0] is not self.chain:
            chains = (self.chain, *self.chain.views)
            self._looked_at = self.chain, all(is_ours(op) for chain in chains for op in chain.ops)
        return self._looked_at[1]

    _looked_at: tuple[Chain | None, bool] = None, False
    """A chain, and whether all of its ops are ours."""

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
        return files_digest(path for path, _ in self.samples)


def is_ours(op: Any) -> bool:
    """Whether an op and all within it are of this library, and draw from their own seeds."""
    own = type(op).__module__.startswith("penstock.transforms.") and not calls(op)
    return own and all(map(is_ours, getattr(op, "transforms", ())))


def needs_opencv(op: Any) -> bool:
    """Whether an op, or one within it, is done by OpenCV."""
    own = type(op).__name__ in ("GaussianBlur", "ThreeAugment") or getattr(op, "antialias", True) is False
    return own or any(map(needs_opencv, getattr(op, "transforms", ())))


def files_digest(paths: Iterable[str]) -> str:
    """Of files by their names, sizes, and when they and their entries were last changed: nobody can set the last of these back. One that is
    not there is known by that."""
    found = hashlib.blake2b(digest_size=16)
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - for each of a million
            said: object = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)  # guard: change-time
        except OSError as exc:
            said = exc.errno
        found.update(f"{os.path.abspath(path)}\0{said}\n".encode("utf-8", "surrogateescape"))  # noqa: PTH100
    return found.hexdigest()


def classes_in(root: str) -> tuple[list[str], dict[str, int]]:
    """The folders of a root, sorted, and their numbers."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if not classes:
        raise FileNotFoundError(f"Couldn't find any class folder in {root}.")
    return classes, {name: number for number, name in enumerate(classes)}


def files_below(root: str, extensions: tuple[str, ...]) -> Iterator[str]:
    """Every such file below a folder, in the order of their names."""
    for folder, _, files in sorted(os.walk(root, followlinks=True)):
        for file in sorted(files):
            if file.lower().endswith(extensions):
                yield os.path.join(folder, file)  # noqa: PTH118 - as torchvision names them


def files_by_class(
    root: str, class_to_idx: dict[str, int], extensions: tuple[str, ...]
) -> list[tuple[str, int]]:
    """(path, class) of every such file, class by class."""
    found = {name: list(files_below(os.path.join(root, name), extensions)) for name in sorted(class_to_idx)}  # noqa: PTH118
    if empty := [name for name, paths in found.items() if not paths]:
        raise FileNotFoundError(
            f"Found no valid file for the classes {', '.join(empty)}. Supported extensions are: {', '.join(extensions)}"
        )
    return [(path, class_to_idx[name]) for name, paths in found.items() for path in paths]
