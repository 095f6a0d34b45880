"""AugMix and GaussianBlur of torchvision, which work on tensors, by the GPU kernels: beside the CPU's form, which has torchvision's pixels.
In Triton's interpreter where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from penstock.kernels.forms import supported
from penstock.pipeline.their_draws import aug_mix
from penstock.transforms.cpu import execute
from penstock.transforms.steps import Code, Interpolation, Program, Step
from tests.kernel_cases import IMAGES, SIZE, run
from tests.torchvision_here import torchvision, use_convolutions

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPS = {
    **dict.fromkeys(("ShearX", "ShearY", "Brightness", "Color", "Contrast", "Sharpness"), (0.27, -0.27)),
    **dict.fromkeys(("TranslateX", "TranslateY"), (9.0, -9.0)),
    "Rotate": (20.0, -20.0), "Posterize": (3.0, 1.0), "Solarize": (0.9, 0.3), "AutoContrast": (0.0,), "Equalize": (0.0,),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _numbers_may_overflow() -> Iterator[None]:
    """The interpreter computes what masks throw away, too."""
    torchvision()
    use_convolutions()
    with np.errstate(all="ignore"):
        yield


def apart(program: Program, name: str) -> np.ndarray:
    (found,) = run([program], [IMAGES[name]], DEVICE)
    return np.abs(found.astype(int) - execute(program, IMAGES[name]))


@pytest.mark.parametrize(
    ("name", "version"), [*((name, "v2") for name in OPS), ("Solarize", "v1"), ("Rotate", "v1")]
)
def test_an_op_of_augmix_is_within_a_level(name: str, version: str) -> None:
    for magnitude in OPS[name]:
        given = magnitude * 255 if (name, version) == ("Solarize", "v1") else magnitude
        one = Step(Code.MIX_TENSORS, (0.0, ((1.0, ((name, given),)),), version, int(Interpolation.BILINEAR)))
        assert supported(one) == ""
        for image in ("noise", "narrow"):
            assert apart([one], image).max() <= 1, (magnitude, image)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_augmix_is_within_a_level_on_average(version: str) -> None:
    """A level more or less may be several when a table that depends on the image follows: on average it stays below one."""
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    op = (v1 if version == "v1" else v2).AugMix()
    means, most = [], 0
    for seed in range(4):
        torch.manual_seed(seed)
        found = apart(aug_mix(op, SIZE), "smooth")
        means.append(float(found.mean()))
        most = max(most, int(found.max()))
    assert max(means) < 1
    assert most <= 8


def test_a_blur_of_torchvisions_is_within_a_level() -> None:
    for version in ("v1", "v2"):
        for taps, sigma in (((5, 9), 1.3), ((3, 3), 0.2)):
            assert apart([Step(Code.BLUR, (*taps, sigma, sigma, version))], "smooth").max() <= 1
