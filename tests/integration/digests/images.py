"""Cases of images, their targets, and sound. Pixels and sound depend on libraries; their order and checkpoints do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock import AnnotatedDataset, AudioFolder, ImageFolder, Reuse, StagedDataset, TarDataset
from penstock import transforms as T
from tests.integration.digests.case import Case, Keywords
from tests.integration.digests.files import RATE, Room, images, pattern, png

PICTURES = ("numpy", "PIL")
BLURS = (*PICTURES, "cv2")
SOUND = ("numpy", "soundfile", "cpu")
FLOATS = [
    T.ToImage(),
    T.ToDtype(torch.float32, scale=True),
    T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
]
CROP = T.RandomResizedCrop(32)
TRAINING = [CROP, T.RandomHorizontalFlip(), *FLOATS]
DEEP = [[(0.3, "Rotate", 0.75), (0.7, "Identity", None)], [(0.5, "ShearX", 0.9), (0.5, "Color", 0.2)]]


def darker(pixels: Any) -> Any:
    """A function of the user's, in a chain."""
    return np.asarray(pixels) // 2


CHAINS: dict[str, Any] = {
    "training": TRAINING,
    "testing": [T.Resize(40), T.CenterCrop(32), T.ToTensor()],
    "uint8": [CROP, T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
    "RandAugment": [CROP, T.RandAugment(), *FLOATS],
    "RandAugment, uint8": [CROP, T.RandAugment(num_ops=3)],
    "RandAugment before the crop": [T.RandAugment(), CROP, *FLOATS],
    "AutoAugment": [T.Resize((40, 40)), T.AutoAugment(), *FLOATS],
    "TrivialAugmentWide": [T.TrivialAugmentWide(), CROP, *FLOATS],
    "AugMix": [CROP, T.AugMix(severity=8), *FLOATS],
    "AugMix, uint8": [CROP, T.AugMix()],
    "DeepAutoAugment": [T.DeepAutoAugment(DEEP), CROP, *FLOATS],
    "ColorJitter": [T.Resize((36, 36)), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(0.3), *FLOATS],
    "Pad and RandomCrop": [T.Resize((36, 36)), T.Pad(3), T.RandomCrop(32, padding=4), T.Grayscale(3)],
    "RandomErasing": [CROP, T.RandomErasing(p=0.8), *FLOATS],
    "RandomErasing, noise": [CROP, T.RandomErasing(p=0.8, value="random")],
    "choices": [CROP, T.RandomApply([T.RandAugment()], p=0.5), T.RandomChoice([T.Grayscale(3), T.Pad(0)])],
    "bicubic": [T.RandomResizedCrop((24, 40), interpolation=T.InterpolationMode.BICUBIC), *FLOATS],
    "a function": [CROP, T.Lambda(darker), T.RandomHorizontalFlip(), *FLOATS],
    "PerBatch": [CROP, T.PerBatch(T.RandAugment()), *FLOATS],
    "PerBatch, pairs": [T.PerBatch([CROP, T.RandomHorizontalFlip()], samples=2)],
    "several crops": [
        T.Resize(48),
        T.MultiCrop([([T.RandomResizedCrop(32), T.RandomHorizontalFlip()], 2), (T.RandomResizedCrop(16), 3)]),
        T.ColorJitter(0.4),
        *FLOATS,
    ],
}
BLURRED = {
    "GaussianBlur": [CROP, T.GaussianBlur(5), *FLOATS],
    "ThreeAugment": [CROP, T.ThreeAugment(), *FLOATS],
    "antialias=False": [T.RandomResizedCrop(24, antialias=False), *FLOATS],
}

Make = Callable[[Room], tuple[Any, Keywords]]


def folder(chain: Any, **more: Any) -> Make:
    return lambda room: (ImageFolder(room.photos, chain), {"batch_size": 5, "shuffle": True, **more})


def fast(room: Room) -> tuple[Any, Keywords]:
    return ImageFolder(room.photos, TRAINING, fast_decode=True), {"batch_size": 5, "shuffle": True}


def damaged(room: Room, **more: Any) -> tuple[Any, Keywords]:
    return ImageFolder(room.damaged, TRAINING), {"batch_size": 5, "shuffle": True, **more}


def shards(room: Room, **more: Any) -> tuple[Any, Keywords]:
    dataset = TarDataset(str(room.shards / "part-{0..1}.tar"), TRAINING)
    return dataset, {"batch_size": 5, "shuffle": True, **more}


FILES = [data for _, data in images()]


def read(index: int) -> tuple[bytes, Any]:
    return FILES[index], {"key": index, "name": f"image {index}", "box": torch.full((2,), index)}


def raw(index: int) -> tuple[bytes, int]:
    return pattern(index, 20 + index, 30).tobytes(), index


def decoded(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8).reshape(-1, 30, 3)


def staged(chain: Any, **more: Any) -> Make:
    return lambda _: (StagedDataset(read, chain, len(FILES)), {"batch_size": 5, "shuffle": True, **more})


def own_decoder(_: Room) -> tuple[Any, Keywords]:
    return StagedDataset(raw, [T.RandomCrop(16), T.RandAugment()], 9, decoder=decoded), {"batch_size": 4}


def pictures() -> Iterator[tuple[str, Case]]:
    for name, chain in CHAINS.items():
        yield f"folder: {name}", Case(make=folder(chain), made_by=PICTURES, spawns=name == "training")
    for name, chain in BLURRED.items():
        yield f"folder: {name}", Case(make=folder(chain), made_by=BLURS)
    yield "folder: shard", Case(make=folder(TRAINING, shard=(1, 2), batch_size=2), made_by=PICTURES)
    yield "folder: sequential", Case(make=folder(TRAINING, shuffle=False), made_by=PICTURES)
    yield "folder: samples", Case(make=folder(TRAINING, batch_size=None), made_by=PICTURES)
    yield (
        "folder: half floats",
        Case(make=folder(TRAINING, device="cpu", dtype=torch.float16), made_by=PICTURES),
    )
    yield "folder: fast_decode", Case(make=fast, made_by=(*PICTURES, "simplejpeg"))
    for how in ("skip", "replace"):
        yield f"folder: {how}", Case(make=partial(damaged, on_error=how), made_by=PICTURES)
    yield (
        "folder: MixUp",
        Case(
            make=folder(TRAINING, collate_fn=T.MixUp(alpha=0.4, num_classes=2)),
            made_by=(*PICTURES, "torch", "cpu"),
        ),
    )
    yield (
        "folder: CutMix",
        Case(make=folder([CROP], collate_fn=T.CutMix(num_classes=2)), made_by=(*PICTURES, "torch")),
    )
    yield "tar", Case(make=shards, made_by=PICTURES)
    yield "tar: shard", Case(make=partial(shards, shard=(0, 2)), made_by=PICTURES)
    yield "staged: own read", Case(make=staged(TRAINING), made_by=PICTURES)
    yield "staged: own decoder", Case(make=own_decoder, made_by=PICTURES)


# ---- masks and boxes


def annotated(index: int) -> tuple[bytes, dict[str, Any]]:
    height, width = 40 + index, 60
    boxes = [[4 + 5 * at, 3 + 2 * at, 20 + 5 * at, 17 + 3 * at] for at in range(1 + index % 3)]
    masks = pattern(index, height, width)[..., 0].astype(np.int64) // 32
    data = png(pattern(index, height, width))
    return data, {"boxes": np.array(boxes, np.float32), "labels": np.arange(len(boxes)), "masks": masks}


def only_masks(index: int) -> tuple[bytes, dict[str, Any]]:
    data, targets = annotated(index)
    return data, {"masks": targets["masks"]}


def without_masks(index: int) -> tuple[bytes, dict[str, Any]]:
    data, targets = annotated(index)
    return data, {name: targets[name] for name in ("boxes", "labels")}


def detection(samples: list[Any]) -> Any:
    return torch.stack([image for image, _ in samples]), [target for _, target in samples]


def targets(reads: Any, chain: Any, **more: Any) -> Make:
    return lambda _: (AnnotatedDataset(reads, chain, 11), {"batch_size": 4, "shuffle": True, **more})


MOVED = [T.RandomResizedCrop(32, scale=(0.4, 1.0)), T.RandomHorizontalFlip(), T.ColorJitter(0.2)]


def moved_targets() -> Iterator[tuple[str, Case]]:
    whole = Case(make=targets(annotated, [*MOVED, *FLOATS], collate_fn=detection), made_by=PICTURES)
    yield "targets: all", whole
    boxes = targets(without_masks, [T.RandAugment(), *MOVED], collate_fn=detection, shard=(0, 2))
    yield "targets: boxes, shard", Case(make=boxes, made_by=PICTURES)
    yield "targets: masks", Case(make=targets(only_masks, [*MOVED, *FLOATS]), made_by=PICTURES)


# ---- sound

HEARD = [T.PadOrCut(800), T.Gain((-6, 6)), T.AddNoise((10, 30))]
SPECTRA = [
    *HEARD,
    T.LogMel(RATE, n_mels=16, n_fft=256, hop_length=80),
    T.SpecAugment(time_warp=2, freq_mask=4, time_mask=4),
]


def sounds(chain: Any, rate: int | None = None, **more: Any) -> Make:
    def make(room: Room) -> tuple[Any, Keywords]:
        return AudioFolder(room.sounds, chain, sample_rate=rate), {"batch_size": 4, "shuffle": True, **more}

    return make


def ragged(samples: list[Any]) -> Any:
    return [wave for wave, _ in samples], [target for _, target in samples]


def heard() -> Iterator[tuple[str, Case]]:
    yield "audio: waves", Case(make=sounds(HEARD), made_by=SOUND)
    yield "audio: spectra", Case(make=sounds(SPECTRA), made_by=SOUND)
    yield "audio: spectra, shard", Case(make=sounds(SPECTRA, shard=(1, 2), batch_size=2), made_by=SOUND)
    yield "audio: ragged", Case(make=sounds([T.Gain((-6, 6))], collate_fn=ragged), made_by=SOUND)
    yield "audio: resampled", Case(make=sounds(HEARD, 6_000), made_by=(*SOUND, "soxr"))
    yield (
        "audio: Spectrogram",
        Case(make=sounds([T.PadOrCut(800), T.Spectrogram(n_fft=128, hop_length=64)]), made_by=SOUND),
    )


# ---- reuse


def reused(make: Make, **options: Any) -> Make:
    """With samples that are kept; `disk=True`: in a new folder."""

    def made(room: Room) -> tuple[Any, Keywords]:
        where = {"store": "disk", "path": room.fresh()} if options.get("disk") else {}
        rest = {name: value for name, value in options.items() if name != "disk"}
        dataset, keywords = make(room)
        return dataset, {
            **keywords,
            "reuse": Reuse(**{"times": 3, "split": 1, "max_bytes": "16MiB", **where, **rest}),
        }

    return made


KEPT = [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.RandAugment(), *FLOATS]


def reuses() -> Iterator[tuple[str, Case]]:
    yield "reuse: memory", Case(make=reused(folder(KEPT)), epochs=5, made_by=PICTURES)
    yield (
        "reuse: memory, twice",
        Case(make=reused(folder(KEPT), times=2, split=2), epochs=4, made_by=PICTURES),
    )
    yield (
        "reuse: memory, shard",
        Case(make=reused(folder(KEPT, shard=(1, 2), batch_size=2)), epochs=4, made_by=PICTURES),
    )
    yield "reuse: memory, own read", Case(make=reused(staged(KEPT)), epochs=4, made_by=PICTURES)
    yield (
        "reuse: memory, sequential",
        Case(make=reused(folder(KEPT, shuffle=False)), epochs=4, made_by=PICTURES),
    )
    yield "reuse: disk", Case(make=reused(folder(KEPT), disk=True), epochs=5, made_by=PICTURES)
    yield (
        "reuse: disk, lasting",
        Case(make=reused(folder(KEPT), disk=True, persistent=True), epochs=4, made_by=PICTURES),
    )
    yield "reuse: disk, tar", Case(make=reused(shards, disk=True), epochs=4, made_by=PICTURES)
    yield "reuse: audio, memory", Case(make=reused(sounds(SPECTRA)), epochs=4, made_by=SOUND)
    yield "reuse: audio, disk", Case(make=reused(sounds(SPECTRA), disk=True), epochs=4, made_by=SOUND)
