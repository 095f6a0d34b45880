"""Image ops with the names, parameters and defaults of torchvision's v2, and audio ops. An op draws a program; lanes run it."""

from __future__ import annotations

from penstock.transforms.audio import AddNoise, Gain, PadOrCut, Resample
from penstock.transforms.base import Compose, Op
from penstock.transforms.batch import CutMix, MixUp
from penstock.transforms.boxes import ClampBoundingBoxes, SanitizeBoundingBoxes
from penstock.transforms.deep import DeepAutoAugment
from penstock.transforms.ops import (
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    Lambda,
    Pad,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from penstock.transforms.per_batch import PerBatch
from penstock.transforms.policies import AugMix, AutoAugment, RandAugment, ThreeAugment, TrivialAugmentWide
from penstock.transforms.spectra import STFT, LogMel, SpecAugment, Spectrogram
from penstock.transforms.steps import Interpolation as InterpolationMode
from penstock.transforms.tail import Normalize, ToDtype, ToImage, ToTensor
from penstock.transforms.views import MultiCrop

__all__ = [
    "STFT",
    "AddNoise",
    "AugMix",
    "AutoAugment",
    "CenterCrop",
    "ClampBoundingBoxes",
    "ColorJitter",
    "Compose",
    "CutMix",
    "DeepAutoAugment",
    "Gain",
    "GaussianBlur",
    "Grayscale",
    "InterpolationMode",
    "Lambda",
    "LogMel",
    "MixUp",
    "MultiCrop",
    "Normalize",
    "Op",
    "Pad",
    "PadOrCut",
    "PerBatch",
    "RandAugment",
    "RandomApply",
    "RandomChoice",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resample",
    "Resize",
    "SanitizeBoundingBoxes",
    "SpecAugment",
    "Spectrogram",
    "ThreeAugment",
    "ToDtype",
    "ToImage",
    "ToTensor",
    "TrivialAugmentWide",
]
