"""Files are decoded beside what training has queued, and not behind it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("simplejpeg")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from penstock.gpu.nvjpeg import ENGINES, NO_PIPELINE, DecodeError, Decoder, File
from penstock.gpu.queues import too_few
from tests.unit.test_jpeg_parts import jpeg_of, photo

FILES, SIDE, QUEUED_S = 32, 256, 1.0


def decoder_of(stream: Any) -> Decoder:
    try:
        return Decoder(stream, most=FILES, backend=ENGINES, flags=NO_PIPELINE)
    except DecodeError:
        pytest.skip("the card has no JPEG engines")


def test_files_pass_by_the_steps_that_training_has_queued() -> None:
    if few := too_few():
        pytest.skip(few)
    data = [np.frombuffer(jpeg_of(photo(SIDE, SIDE, number)), np.uint8).copy() for number in range(FILES)]
    pixels = torch.empty(FILES, 3 * SIDE * SIDE, dtype=torch.uint8, device="cuda")
    places = [
        File(each.ctypes.data, each.nbytes, row.data_ptr(), SIDE, SIDE)
        for each, row in zip(data, pixels, strict=True)
    ]
    streams: list[Any] = [torch.cuda.Stream(priority=-5) for _ in range(2)]  # type: ignore[no-untyped-call]
    decoders = [decoder_of(stream) for stream in streams]
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def decoded() -> None:
        for decoder, stream in zip(decoders, streams, strict=True):
            decoder.decode(places)
            stream.synchronize()

    def work(times: int) -> None:
        for _ in range(times):
            matrix @ matrix

    try:
        decoded()
        work(20)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work(100)
        torch.cuda.synchronize()
        each_s = (time.perf_counter() - begun) / 100
        work(int(QUEUED_S / each_s))
        end = torch.cuda.Event()  # type: ignore[no-untyped-call]
        end.record()
        for _ in range(4):
            decoded()
        assert not end.query(), "training's work was done first: files have waited for all of it"
    finally:
        torch.cuda.synchronize()
        for decoder in decoders:
            decoder.close()
