"""How JPEG files are best decoded on the GPU: alone, and beside a model that trains. scripts/bench gpu_decode --data DIR

Each way decodes for a while, alone and beside ResNet-18 on one batch that stays on the device: images/s of both, a line of JSON for
each. A way is

    way:threads:files[:output:flags:priority]

    way       torchvision (its nvJPEG), engines (nvJPEG's use of the card's JPEG engines) or kernels (nvJPEG without them),
              the last two by penstock.gpu.nvjpeg
    threads   that decode, each with a decoder and a stream of its own (torchvision has one decoder, which is locked)
    files     decoded together, by one call
    output    nvjpegOutputFormat_t: 3 is RGB in planes, 1 is YCbCr as it is in the file (default 3)
    flags     of nvjpegCreateEx: 1 has one stream for each engine rather than two, 32 interpolates chroma as libjpeg does (default 1)
    priority  of the streams: -5 is the highest (default -5)

Training never runs out of work: three steps are always told to the device. What a file waits for then is a queue of the driver's
(`penstock.gpu.queues`): run it with CUDA_DEVICE_MAX_CONNECTIONS=8 to see.

What was found on one H200, two decoders, 32 files a call, images/s beside a ResNet-18 that alone makes 13,900: with 8 queues 985
(flags 0) and 3,050 (flags 1), half of the calls or a tenth of them taking 90 ms; with 32 queues 13,300 and 11,600, 10-12 ms in nine of ten
calls, training at 0.95 and 0.96. With 8 queues and one decoder: one file a call
(nvjpegDecode, or its phases) 2,700, YCbCr 2,200. With INTERPOLATES (flag 32) they are equal to libjpeg
within 1 level, but give 4,500 images/s alone, and training loses a third or more. Kernels give 1,000-1,800.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from _gpu_feeds import resident
from _gpu_measure import Training
from _prepare_subjects import import_torchvision

from penstock.gpu.nvjpeg import ENGINES, INTERPOLATES, KERNELS, NO_PIPELINE, PLANES, Decoder, File
from penstock.gpu.queues import VARIABLE
from penstock.pipeline.header import BadImage, read_header

BACKENDS: Mapping[str, int] = {"engines": ENGINES, "kernels": KERNELS}
WAYS = "torchvision:1:64,engines:1:32,engines:2:32,engines:2:64,engines:2:32:3:0,kernels:1:64"
BASELINE = 0xC0
"""The frame of files that the engines take."""
IMAGE_BYTES = 4 << 20
"""Pixels of one image; files of larger ones are left out."""
COMPARED = 32
BATCH, QUEUED, WARMUP_S = 512, 3, 2.0
"""Of the training: images of a batch, steps that the device is told ahead, and seconds until it has found its pace."""
NAME_LENGTH = 90


class Way(NamedTuple):
    """Who decodes, by how many threads, how many files at a time."""

    name: str
    threads: int
    files: int
    output: int = PLANES
    flags: int = NO_PIPELINE
    priority: int = -5

    @classmethod
    def of(cls, text: str) -> Way:
        name, *numbers = text.split(":")
        most = 2 if name == "torchvision" else 5
        if name not in (*BACKENDS, "torchvision") or not 2 <= len(numbers) <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r}: a way is engines|kernels:threads:files[:output:flags:priority] or torchvision:threads:files"
            )
        try:
            way = cls(name, *map(int, numbers))
        except ValueError as exc:
            raise argparse.ArgumentTypeError(f"{text!r}: {exc}") from exc
        if way.threads < 1 or way.files < 1:
            raise argparse.ArgumentTypeError(f"{text!r}: there must be a thread and a file at least")
        return way


def ways_of(text: str) -> list[Way]:
    return [Way.of(word) for word in text.split(",") if word]


# ---- files


class Photo(NamedTuple):
    """A file in memory, and the size of the image in it."""

    data: torch.Tensor
    height: int
    width: int

    @property
    def nbytes(self) -> int:
        return 3 * self.height * self.width


def photo_of(data: bytes) -> Photo | None:
    """None where the engines do not take it, or there is no room for its pixels."""
    try:
        header = read_header(data)
    except BadImage:
        return None
    if header.frame != BASELINE or header.channels != 3 or 3 * header.pixels > IMAGE_BYTES:
        return None
    return Photo(torch.from_numpy(np.frombuffer(data, np.uint8).copy()), header.height, header.width)


def photos_in(folder: Path) -> list[Photo]:
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg")]
    photos = [photo for path in paths if (photo := photo_of(path.read_bytes())) is not None]
    if not photos:
        raise SystemExit(f"{folder}: no baseline JPEG files in it")
    say({"files": len(photos), "of": len(paths)})
    return photos


def rounds(photos: Sequence[Photo], count: int) -> Iterator[list[Photo]]:
    """So many at a time, again and again."""
    at = 0
    while True:
        yield [photos[(at + each) % len(photos)] for each in range(count)]
        at += count


# ---- ways of decoding


class Job(Protocol):
    """What one thread does."""

    @property
    def held_bytes(self) -> int | None:
        """Of the device, for the library; None: it does not say."""

    def __call__(self) -> int:
        """Decodes some files, and waits for them; how many."""

    def close(self) -> None: ...


class Ours:
    """A decoder, with a place for its pixels."""

    def __init__(self, photos: Sequence[Photo], way: Way) -> None:
        self._stream: Any = torch.cuda.Stream(priority=way.priority)  # type: ignore[no-untyped-call]
        self._decoder = Decoder(
            self._stream, most=way.files, backend=BACKENDS[way.name], output=way.output, flags=way.flags
        )
        self._rounds = rounds(photos, way.files)
        self.room = torch.empty(way.files * IMAGE_BYTES, dtype=torch.uint8, device="cuda")

    @property
    def held_bytes(self) -> int:
        return self._decoder.held_bytes

    def __call__(self) -> int:
        files, begin = [], self.room.data_ptr()
        for number, photo in enumerate(next(self._rounds)):
            address, size = photo.data.data_ptr(), photo.data.numel()
            target = begin + number * IMAGE_BYTES
            files.append(File(address, size, target, photo.height, photo.width))
        self._decoder.decode(files)
        self._stream.synchronize()
        return len(files)

    def close(self) -> None:
        self._decoder.close()


class Torchvisions:
    held_bytes: int | None = None

    def __init__(self, photos: Sequence[Photo], way: Way) -> None:
        self._io = import_torchvision().io
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._rounds = rounds(photos, way.files)

    def __call__(self) -> int:
        data = [photo.data for photo in next(self._rounds)]
        with torch.cuda.stream(
            self._stream
        ):  # the default stream is the training's, and would have to be waited for
            self._io.decode_jpeg(data, self._io.ImageReadMode.RGB, device="cuda")
        self._stream.synchronize()
        return len(data)

    def close(self) -> None:
        pass


# ---- measuring


class Beside:
    """A model that trains while it is asked to, in the thread that asks."""

    def __init__(self) -> None:
        self._training, self._batches = Training("resnet18", "cuda"), resident(BATCH, "cuda")
        self.rate(WARMUP_S)

    def rate(self, seconds: float) -> float:
        """Images/s."""
        torch.cuda.current_stream().synchronize()
        start, steps, told = time.perf_counter(), 0, deque[Any]()
        while time.perf_counter() - start < seconds:
            self._training.step(*next(self._batches))
            steps += 1
            told.append(torch.cuda.Event(blocking=True))  # type: ignore[no-untyped-call]
            told[-1].record()
            if len(told) > QUEUED:
                told.popleft().synchronize()
        torch.cuda.current_stream().synchronize()
        return steps * BATCH / (time.perf_counter() - start)


class Rate(NamedTuple):
    """Of all jobs together; milliseconds of their calls; and what `work` returned."""

    images_per_s: float
    call_ms: list[float]
    found: float | None


def rate(jobs: Sequence[Callable[[], int]], work: Callable[[], float | None]) -> Rate:
    """Each job in a thread of its own, while `work` goes on."""
    stop, calls = threading.Event(), list[float]()

    def loop(job: Callable[[], int]) -> int:
        count = 0
        while not stop.is_set():
            begun = time.perf_counter()
            count += job()
            calls.append(1e3 * (time.perf_counter() - begun))
        return count

    with ThreadPoolExecutor(len(jobs)) as pool:
        start = time.perf_counter()
        counts = [pool.submit(loop, job) for job in jobs]
        try:
            found = work()
        finally:
            stop.set()
        done = sum(count.result() for count in counts)
        return Rate(done / (time.perf_counter() - start), quantiles(calls), found)


def quantiles(calls: Sequence[float]) -> list[float]:
    """The median, nine of ten, the longest."""
    return [round(float(each), 1) for each in np.quantile(calls, (0.5, 0.9, 1.0))] if calls else []


def measured(way: Way, photos: Sequence[Photo], beside: Beside, args: argparse.Namespace) -> dict[str, Any]:
    kind: Callable[[Sequence[Photo], Way], Job] = Torchvisions if way.name == "torchvision" else Ours
    with ExitStack() as stack:
        jobs: list[Job] = []
        for _ in range(way.threads):
            jobs.append(kind(photos, way))
            stack.callback(jobs[-1].close)
            jobs[-1]()
        found: dict[str, Any] = {"kernels": kernels_of(jobs[0])} if args.kernels else {}
        alone = rate(jobs, lambda: time.sleep(args.seconds))
        both = rate(jobs, lambda: beside.rate(args.seconds))
        found |= {"alone": round(alone.images_per_s), "alone_call_ms": alone.call_ms}
        found |= {"beside": round(both.images_per_s), "beside_call_ms": both.call_ms}
        found["training"] = round(both.found or 0)
        held = [job.held_bytes for job in jobs if job.held_bytes is not None]
        return found | ({"decoder_mb": [round(nbytes / 1e6) for nbytes in held]} if held else {})


def kernels_of(job: Job) -> list[tuple[str, int, int]]:
    """Of one call: the name of each, how often, and microseconds in all."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        job()
        torch.cuda.synchronize()
    return [
        (event.key[:NAME_LENGTH], event.count, round(event.device_time_total))
        for event in profiler.key_averages()
        if event.device_time_total > 0
    ]


# ---- differences


def differences(photos: Sequence[Photo], way: Way) -> dict[str, float]:
    """To what libjpeg makes of some of them, in levels."""
    ours = Ours(photos, way)
    try:
        apart = []
        for photo in photos[:COMPARED]:
            ours()
            planes = ours.room[: photo.nbytes].view(3, photo.height, photo.width).cpu().numpy()
            apart.append(np.abs(planes.astype(int) - libjpegs(photo)))
    finally:
        ours.close()
    means = [float(each.mean()) for each in apart]
    largest = max(int(each.max()) for each in apart)
    return {"mean": sum(means) / len(means), "worst_mean": max(means), "max": largest}


def libjpegs(photo: Photo) -> np.ndarray[Any, Any]:
    from PIL import Image

    with Image.open(io.BytesIO(photo.data.numpy().tobytes())) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


# ---- the program


def say(found: Mapping[str, Any]) -> None:
    print(json.dumps(found), flush=True)


def said(what: Mapping[str, Any], work: Callable[[], Mapping[str, Any]]) -> None:
    """What was found, or what kept us from it: the next may work."""
    try:
        say({**what, **work()})
    except RuntimeError as exc:  # the library's and ours among them
        say({**what, "error": str(exc)})


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", type=Path, required=True, help="a folder of JPEG files")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument(
        "--ways",
        type=ways_of,
        default=WAYS,
        metavar="WAY,...",
        help="way:threads:files[:output:flags:priority], as above (default: %(default)s)",
    )
    parser.add_argument("--kernels", action="store_true", help="also the kernels of one call of each way")
    parser.add_argument(
        "--differences",
        action="store_true",
        help="also how far pixels are from libjpeg's, with flags 0 and 32",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv)
    photos, beside = photos_in(args.data), Beside()
    say({"training alone": round(beside.rate(args.seconds)), "queues": os.environ.get(VARIABLE)})
    for way in args.ways:
        said({"way": ":".join(map(str, way))}, partial(measured, way, photos, beside, args))
    if args.differences:
        for name in BACKENDS:
            for flags in (0, INTERPOLATES):
                way = Way(name, 1, 1, flags=flags)
                what = {"difference to libjpeg": name, "flags": flags}
                said(what, partial(differences, photos, way))
    return 0


if __name__ == "__main__":
    sys.exit(main())
