"""AugMix and GaussianBlur of torchvision by the kernels on a GPU: the tests of tests/unit, which run where the kernels do."""

from __future__ import annotations

import pytest
import torch

from tests.unit.test_kernels_tensors import (
    _numbers_may_overflow,
    test_a_blur_of_torchvisions_is_within_a_level,
    test_an_op_of_augmix_is_within_a_level,
    test_augmix_is_within_a_level_on_average,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
__all__ = [
    "_numbers_may_overflow",
    "test_a_blur_of_torchvisions_is_within_a_level",
    "test_an_op_of_augmix_is_within_a_level",
    "test_augmix_is_within_a_level_on_average",
]
