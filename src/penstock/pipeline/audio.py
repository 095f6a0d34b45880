"""Decode audio files to float32 waveforms, and serve folders of them as (tensor, target).

Rule 1: a truncated or corrupt file is an error of its sample. Part of a recording never passes for the whole.
Rule 2: the header check refuses a recording above the cap before any allocation.
Rule 3: a draw depends on the sample's seed, the op's name and its position in the chain.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.dataset.costs import KnownCosts, file_bytes
from penstock.dataset.offers import Offer, Offers, ReadSeam
from penstock.dataset.seeding import call_seed
from penstock.errors import ConfigError
from penstock.pipeline.chain import flattened
from penstock.pipeline.folders import FileTree, files_digest, listed_costs
from penstock.plan.seeds import op_seed
from penstock.sources.anywhere import local_path
from penstock.sources.sources import ByteRange, Source, WholeFiles
from penstock.transforms.audio import AudioOp, Drawn, Function, Resample, Shape, Wave, check_count
from penstock.transforms.draws import Draws
from penstock.transforms.libs import AUDIO_LIBRARIES, preload, soundfile
from penstock.transforms.ops import Lambda

VERSION = 1
"""Raise it whenever an op or the decoder changes its result."""
MAX_SAMPLES = 100_000_000
"""Samples of all channels together. Longer recordings are refused unless the user raises the limit."""
EXTENSIONS = (".wav", ".flac")
OnDraw = Callable[[AudioOp, Drawn, Shape], None]
"""Called with each op, its draw and the sample's shape."""
UNKNOWN_SIZE = 0xFFFF_FFFF
"""The data size in a WAV file that was written to a pipe."""


class BadAudio(ValueError):
    """The bytes are not decodable audio."""


# ---- decoding


def decode_audio(data: bytes, *, max_samples: int = MAX_SAMPLES) -> tuple[Wave, int]:
    """Decode a WAV or FLAC file to (channels x samples at full scale 1, sampling rate); raises BadAudio."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        check_wav_is_whole(data)
    elif data[:4] != b"fLaC":
        raise BadAudio(f"not a WAV or FLAC file: it begins with {data[:8]!r}")
    module = soundfile()
    try:
        with module.SoundFile(io.BytesIO(data)) as file:
            frames, channels, rate = int(file.frames), int(file.channels), int(file.samplerate)
            check_header(frames, channels, rate, max_samples)
            found: Wave = file.read(frames, dtype="float32", always_2d=True)
    except (module.SoundFileError, RuntimeError, TypeError, OSError) as exc:
        raise BadAudio(f"the file cannot be decoded: {exc}") from exc
    if len(found) != frames:
        raise BadAudio(f"the file is cut off: {len(found)} of {frames} samples could be read")
    if not np.isfinite(found).all():
        raise BadAudio("the file holds samples that are no finite numbers")
    return np.ascontiguousarray(found.T), rate


def check_header(frames: int, channels: int, rate: int, max_samples: int) -> None:
    if frames < 1 or channels < 1 or rate < 1:
        raise BadAudio(f"the header says {frames} samples, {channels} channels, {rate} Hz")
    if frames * channels > max_samples:
        raise BadAudio(
            f"the header says {frames:,} samples in {channels} channels, more than max_samples={max_samples:,}: "
            f"raise it if such recordings are meant"
        )


def check_wav_is_whole(data: bytes) -> None:
    """Refuse a truncated WAV file: libsndfile would take it for a shorter one."""
    at = 12
    while at + 8 <= len(data):
        kind, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8
        if kind == b"data":
            if at + size > len(data) and size != UNKNOWN_SIZE:
                raise BadAudio(f"the file is cut off: {len(data) - at} of {size} bytes of audio are there")
            return
        at += size + size % 2
    raise BadAudio("the file is cut off, or no WAV file: it holds no audio")


# ---- chain


@dataclass(frozen=True, slots=True)
class AudioChain:
    """A sequence of ops, after resampling to a common rate."""

    ops: tuple[AudioOp, ...]
    sample_rate: int | None = None
    """Resample every recording to this rate; None keeps each recording's own."""

    @classmethod
    def of(cls, transform: Any, sample_rate: int | None = None) -> AudioChain:
        """Build the chain from a `Compose`, a list of ops, one op, or None."""
        if sample_rate is not None:
            check_count("sample_rate", sample_rate)
        return cls(tuple(map(audio_op, flattened(transform))), sample_rate)

    @property
    def identity(self) -> str:
        said = repr(("audio", VERSION, self.sample_rate, [op.identity() for op in self.ops]))
        return hashlib.blake2b(said.encode(), digest_size=12).hexdigest()

    @property
    def is_random(self) -> bool:
        return any(op.is_random for op in self.ops)

    def started(self, x: Wave, rate: int) -> Wave:
        """Resample a recording to the common rate."""
        return x if self.sample_rate is None else Resample(rate, self.sample_rate).apply(x, ())

    def through(
        self, x: Any, seed: int, first: int = 0, end: int | None = None, on_draw: OnDraw | None = None
    ) -> Any:
        """Run the ops. Each has its own random numbers. It draws when reached, since user functions may change the shape."""
        for number in range(first, len(self.ops) if end is None else end):
            op = self.ops[number]
            drawn = op.draw(Draws(op_seed(seed, op.name, number)), x.shape)
            if on_draw is not None:
                on_draw(op, drawn, x.shape)
            x = op.apply(x, drawn)
        return x


def audio_op(op: Any) -> AudioOp:
    if isinstance(op, AudioOp):
        return op
    if isinstance(op, Lambda):
        return Function(op.lambd)
    raise ConfigError(
        f"{op!r} is no op for audio: use those of penstock.transforms that are, or Lambda(function) for one of your own"
    )


# ---- dataset


class AudioFolder(Dataset[tuple[Any, Any]], Offers):
    """WAV and FLAC files as (tensor, target), one folder per class: `root/class/name.wav`. `root`: a folder, or a URL of an object store.

    With `classes=function`, files may lie anywhere below the root, and `function(path)` returns the class: a number is used as it
    is, names are numbered in sorted order. Recordings with another rate than `sample_rate` are resampled before the first op.
    Tensors are float32, channels x samples, unless the ops change that.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Any = None,
        target_transform: Callable[[int], Any] | None = None,
        *,
        sample_rate: int | None = None,
        classes: str | Callable[[Path], int | str] = "folder",
        max_samples: int = MAX_SAMPLES,
    ) -> None:
        tree = FileTree(os.fspath(root), EXTENSIONS)
        self.root, self.target_transform, self.max_samples = tree.root, target_transform, max_samples
        self._listed = tree.digest()
        if not tree.is_local:
            self.bytes_from = tree.source
        self.chain = AudioChain.of(transform, sample_rate)
        if callable(classes):
            self.classes, self.class_to_idx, self.samples = labelled(tree, classes)
        elif classes == "folder":
            self.classes, self.class_to_idx = tree.classes()
            self.samples = tree.by_class(self.class_to_idx)
        else:
            raise ConfigError(f"classes must be 'folder' or a function of a path, got {classes!r}")
        self.targets = [target for _, target in self.samples]
        self._sizes = tree.sizes(path for path, _ in self.samples)

    def offer(self) -> Offer:
        return Offer(
            shown=self,
            get=partial(getitem, self),
            load=partial(preload, AUDIO_LIBRARIES),
            path_of=lambda index: self.locate(index)[0],
            seam=self._seam() if type(self) is AudioFolder else None,
            costs=self._costs(),
        )

    def _costs(self) -> KnownCosts:
        files = file_bytes(self.locate, lambda: self.bytes_from)
        return listed_costs(self._sizes, len(self.samples), files)

    def _seam(self) -> ReadSeam:
        folder = self.root.rstrip("/")
        return ReadSeam(holder=self, ranges=self._ranges, folder=folder, suffixes=EXTENSIONS)

    def _ranges(self, index: int) -> list[ByteRange]:
        return [self.locate(index)]

    bytes_from: Source = WholeFiles()

    @property
    def identity(self) -> str:
        return self.chain.identity

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        sample = self.chain.through(self.wave(index), call_seed("audio"))
        return torch.from_numpy(np.ascontiguousarray(sample)), self.target_of(index)

    def wave(self, index: int) -> Wave:
        """Decode a recording and resample it to the common rate."""
        try:
            wave, rate = decode_audio(self.bytes_from.read(*self.locate(index)), max_samples=self.max_samples)
        except BadAudio as exc:
            raise BadAudio(f"{self.samples[index][0]}: {exc}") from exc
        return self.chain.started(wave, rate)

    def contents(self) -> str | None:
        """As `StagedDataset.contents`."""
        if type(self) is not AudioFolder:
            return None
        if local_path(self.root) is None:
            return None if self._listed is None else repr((self.root, self._listed))
        return files_digest(path for path, _ in self.samples)

    def locate(self, index: int) -> ByteRange:
        return self.samples[index][0], 0, None

    def target_of(self, index: int) -> Any:
        target = self.samples[index][1]
        return target if self.target_transform is None else self.target_transform(target)

    def name(self, index: int) -> str:
        """Name a sample in messages."""
        return f"sample {index}, {self.samples[index][0]}"


def labelled(
    tree: FileTree, label_of: Callable[[Path], int | str]
) -> tuple[list[str], dict[str, int], list[tuple[str, int]]]:
    """Return the class names, their numbers, and (path, class) of every recording below the root."""
    labels = {path: label_of(Path(path)) for path in tree.files()}
    if not labels:
        raise FileNotFoundError(
            f"Found no file below {tree.root}. Supported extensions are: {', '.join(EXTENSIONS)}"
        )
    kinds = {type(label) for label in labels.values()}
    if kinds == {int}:
        numbers = {str(label): int(label) for label in sorted(set(labels.values()))}
    elif kinds == {str}:
        numbers = {str(label): number for number, label in enumerate(sorted(set(labels.values())))}
    else:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ConfigError(
            f"classes must give a number for every file, or a name for every file; it gave {names}"
        )
    return list(numbers), numbers, [(path, numbers[str(label)]) for path, label in labels.items()]
