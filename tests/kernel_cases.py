"""Programs that the GPU kernels are compared on with the CPU's steps: in Triton's interpreter (tests/unit) and on a GPU (tests/gpu).

Rule 1: what is listed under EXACT is the same to the last bit; what is listed under NEARLY differs by one level at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock import transforms as v2
from penstock.kernels.layout import interleaved, lay_out, planar
from penstock.kernels.run import Executor, Limits
from penstock.kernels.table import Sample
from penstock.pipeline.chain import Chain
from penstock.transforms.augment import steps_of
from penstock.transforms.cpu import execute
from penstock.transforms.steps import Code, Interpolation, Program, Size, Step, program_size
from penstock.transforms.tail import Tail

Pixels = NDArray[np.uint8]
NEAREST, LANCZOS, BILINEAR, BICUBIC = (int(way) for way in Interpolation)
SMALL = Limits(
    rows=64, scratch_bytes=8 << 20, slots=64, block=Limits().block if torch.cuda.is_available() else 4096
)
"""The interpreter does an image at once: its time is per operation, not per pixel."""


def images() -> dict[str, Pixels]:
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:37, 0:45]
    smooth = np.stack([127 + 120 * np.sin(x / 9), 127 + 120 * np.cos(y / 7), (3 * x + y) % 256], axis=2)
    return {
        "noise": rng.integers(0, 256, (37, 45, 3), dtype=np.uint8),
        "smooth": smooth.astype(np.uint8),
        "flat": np.full((37, 45, 3), 93, np.uint8),
        "narrow": rng.integers(90, 120, (37, 45, 3), dtype=np.uint8),
    }


IMAGES = images()
SIZE = (37, 45)
PLAIN = [
    Step(Code.INVERT),
    Step(Code.AUTOCONTRAST),
    Step(Code.EQUALIZE),
    Step(Code.FLIP_H),
    Step(Code.FLIP_V),
]
TURN = steps_of("Rotate", 27.0, SIZE, NEAREST, (9, 200, 50))
MIX = Step(
    Code.MIX,
    (
        0.3,
        (
            (0.2, (Step(Code.EQUALIZE), Step(Code.SHARPNESS, (1.4,)))),
            (0.4, tuple(TURN)),
            (0.1, ()),
        ),
    ),
)
EXACT: dict[str, Program] = {
    "nothing": [],
    **{step.code.name.lower(): [step] for step in PLAIN},
    "gray": [Step(Code.GRAY, (3,))],
    "crop": [Step(Code.CROP, (3, 4, 20, 30))],
    "crop beyond the edges": [Step(Code.CROP, (-3, -4, 50, 60))],
    "crop, then flip": [Step(Code.CROP, (3, 4, 20, 30)), Step(Code.FLIP_V), Step(Code.FLIP_H), Step(Code.CROP, (1, 2, 9, 9))],
    **{f"pad {mode}": [Step(Code.PAD, (5, 6, 7, 8, (1, 2, 3), mode))] for mode in ("constant", "edge", "reflect", "symmetric")},
    "pad twice its size": [Step(Code.CROP, (0, 0, 5, 4)), Step(Code.PAD, (9, 11, 9, 11, 0, "reflect"))],
    **{
        f"resize to {size} by {way.name}": [Step(Code.RESIZE, (*size, int(way), True))]
        for size in ((20, 24), (61, 70), (9, 45))
        for way in (Interpolation.BILINEAR, Interpolation.BICUBIC, Interpolation.NEAREST)
    },
    "resize a part between pixels": [Step(Code.RESIZE, (20, 24, BILINEAR, True, (1.5, 2.25, 30.2, 40.7)))],
    "resize, nearest, odd": [Step(Code.RESIZE, (19, 61, NEAREST, False))],
    "flip, resize, flip": [Step(Code.FLIP_H), Step(Code.RESIZE, (20, 24, BILINEAR, True)), Step(Code.FLIP_V)],
    **{
        f"{name} {level}": steps_of(name, level, SIZE, NEAREST, (9, 200, 50))
        for name, level in (
            ("Rotate", 27.0), ("Rotate", -90.0), ("Rotate", 180.0), ("ShearX", 0.27), ("ShearY", -0.9), ("TranslateX", 13.6),
            ("TranslateY", -20.0), ("Posterize", 3.0), ("Solarize", 0.4), ("Solarize", 0.0), ("Solarize", 1.0),
        )
    },
    **{
        f"{name} {factor}": [Step(code, (factor,))]
        for name, code in (
            ("brightness", Code.BRIGHTNESS), ("contrast", Code.CONTRAST), ("saturation", Code.SATURATION), ("sharpness", Code.SHARPNESS),
        )
        for factor in (0.1, 1.9)
    },
    **{f"hue {shift}": [Step(Code.HUE, (shift,))] for shift in (-0.5, -0.13, 0.07, 0.5)},
    "erase": [Step(Code.ERASE, (4, 5, 10, 11, (1, 2, 3), 0))],
    "mix": [MIX],
    "steps between mixes": [Step(Code.SHARPNESS, (1.9,)), MIX, Step(Code.CONTRAST, (1.3,)), MIX, Step(Code.INVERT)],
    "colours of moves among changes": [
        *TURN, Step(Code.BRIGHTNESS, (0.5,)), *steps_of("TranslateX", 9.0, SIZE, NEAREST, 77), Step(Code.INVERT),
        Step(Code.ERASE, (4, 5, 10, 11, 200, 0)), *steps_of("ShearY", 0.3, SIZE, NEAREST, (1, 2, 3)), Step(Code.SATURATION, (1.8,)),
    ],
    "statistics, moves and stencils": [
        Step(Code.SHARPNESS, (1.9,)), Step(Code.EQUALIZE), *TURN, Step(Code.CONTRAST, (1.4,)), Step(Code.CROP, (3, 4, 20, 30)),
        Step(Code.RESIZE, (30, 30, BILINEAR, True)), Step(Code.FLIP_H), Step(Code.AUTOCONTRAST), Step(Code.EQUALIZE),
    ],
}  # fmt: skip
NEARLY: dict[str, Program] = {
    "resize by Lanczos": [Step(Code.RESIZE, (20, 24, LANCZOS, True))],
    "resize without antialias, smaller": [Step(Code.RESIZE, (20, 24, BILINEAR, False))],
    "resize without antialias, larger": [Step(Code.RESIZE, (60, 70, BILINEAR, False))],
    **{
        f"blur {taps} {sigma}": [Step(Code.BLUR, (*taps, sigma, sigma))]
        for taps in ((5, 5), (3, 9), (23, 23), (1, 7))
        for sigma in (0.4, 3.0)
    },
    "rotate, bilinear": steps_of("Rotate", 27.0, SIZE, BILINEAR, (9, 200, 50)),
    "shear, bilinear": steps_of("ShearX", -0.3, SIZE, BILINEAR, None),
    "mix of bilinear": [Step(Code.MIX, (0.5, ((0.5, tuple(steps_of("Rotate", 27.0, SIZE, BILINEAR, 0))),)))],
}
CHAINS: dict[str, list[Any]] = {
    "RandAugment": [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.RandAugment()],
    "RandAugment before the crop": [v2.RandAugment(), v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()],
    "AutoAugment": [v2.RandomResizedCrop(32, interpolation=BICUBIC), v2.AutoAugment()],
    "TrivialAugmentWide": [v2.TrivialAugmentWide(), v2.Resize((32, 32))],
    "AugMix": [v2.RandomResizedCrop(32), v2.AugMix(interpolation=NEAREST)],
    "ColorJitter": [v2.CenterCrop(32), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandomGrayscale(0.5), v2.RandomErasing(1.0, value=(9, 8, 7))],
    "padded crops": [v2.RandomCrop(32, padding=4, padding_mode="reflect"), v2.RandomVerticalFlip(), v2.RandAugment(3)],
}  # fmt: skip


def laid_out(programs: Sequence[Program], pixels: Sequence[Pixels], device: str) -> list[Sample]:
    """A task: every other image lies there in planes, as a GPU's decoder leaves it."""
    found = []
    for at, (program, image) in enumerate(zip(programs, pixels, strict=True)):
        size = (image.shape[0], image.shape[1])
        tensor = torch.from_numpy(np.ascontiguousarray(image))
        if at % 2:
            tensor = tensor.permute(2, 0, 1).contiguous()
        layout = lay_out(program, size, planar(size) if at % 2 else interleaved(size))
        found.append(Sample(layout, tensor.to(device), at))
    return found


def run(
    programs: Sequence[Program], pixels: Sequence[Pixels], device: str, executor: Executor | None = None
) -> list[Pixels]:
    """What the kernels make of each image; the programs' results must be of one size."""
    samples = laid_out(programs, pixels, device)
    batch = torch.zeros(len(samples), 3, *samples[0].layout.size, dtype=torch.uint8, device=device)
    executor = executor or Executor(batch, Tail(), SMALL)
    executor.run(samples, batch)
    return list(batch.permute(0, 2, 3, 1).cpu().numpy())


def difference(program: Program, names: Sequence[str], device: str) -> int:
    """The largest one between the kernels and the CPU, in levels, over some images."""
    found = run([program] * len(names), [IMAGES[name] for name in names], device)
    wanted = [execute(program, IMAGES[name]) for name in names]
    return max(int(np.abs(a.astype(int) - b).max()) for a, b in zip(found, wanted, strict=True))


def photo(seed: int, size: Size) -> Pixels:
    """Something with edges, slopes and noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0 : size[0], 0 : size[1]]
    slopes = np.stack(
        [90 + 80 * np.sin(x / (5 + seed % 7)), 2 * y + seed % 60, 127 + 99 * np.cos((x + y) / 11)], axis=2
    )
    pixels: Pixels = np.clip(slopes + rng.integers(-20, 20, (*size, 3)), 0, 255).astype(np.uint8)
    return pixels


def drawn(name: str, seed: int) -> tuple[Program, Pixels]:
    """A program of a chain, and an image for it."""
    size = ((41, 53), (64, 40), (33, 90))[seed % 3]
    return Chain.of(CHAINS[name]).draw(seed, size), photo(seed, size)


# ---- programs at random, of steps that are exact


def steps_for(size: Size) -> st.SearchStrategy[list[Step]]:
    factor = st.floats(0, 3, width=32)
    name = st.sampled_from(
        ["Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "Posterize", "Solarize"]
    )
    top, left = st.integers(-6, 20), st.integers(-6, 20)
    one: st.SearchStrategy[Step] = st.one_of(
        st.sampled_from([*PLAIN, Step(Code.GRAY, (3,)), MIX]),
        st.builds(
            lambda code, f: Step(code, (f,)),
            st.sampled_from([Code.BRIGHTNESS, Code.CONTRAST, Code.SATURATION, Code.SHARPNESS]),
            factor,
        ),
        st.builds(lambda shift: Step(Code.HUE, (shift,)), st.floats(-0.5, 0.5)),
        st.builds(lambda *box: Step(Code.CROP, box), top, left, st.integers(1, 40), st.integers(1, 40)),
        st.builds(
            lambda *args: Step(Code.RESIZE, (*args, True)),
            *(st.integers(1, 50), st.integers(1, 50), st.sampled_from([BILINEAR, BICUBIC])),
        ),
        st.builds(lambda *box: Step(Code.ERASE, (*box, 50, 0)), *(st.integers(0, 9),) * 4),
        st.builds(
            lambda *args: Step(Code.PAD, args),
            *(st.integers(0, 5),) * 4,
            st.sampled_from([0, (5, 250, 99)]),
            st.sampled_from(["constant", "edge", "symmetric"]),
        ),
    )
    turned = st.builds(
        lambda name, level, fill: steps_of(
            name, min(8, abs(int(8 * level))) if name == "Posterize" else level, size, NEAREST, fill
        ),
        *(name, st.floats(-1, 1), st.sampled_from([None, (9, 8, 7)])),
    )
    return st.one_of(one.map(lambda step: [step]), turned)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Up to five steps for an image of SIZE."""
    program: Program = []
    for _ in range(draw(st.integers(1, 5))):
        program += draw(steps_for(program_size(program, SIZE)))
    return program
