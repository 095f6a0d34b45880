"""torchvision's image transforms that no draw of ours stands for (`pipeline.their_draws`), and why: for docs/transforms.md, which a test compares."""

from __future__ import annotations

CLOSING = ("ToTensor", "ToImage", "PILToTensor", "ToDtype", "ConvertImageDtype", "Normalize")
"""Those that end the part of a chain which works on pictures: our tail does what they do."""

SEVERAL, ON_TENSORS, ON_BOXES, ON_BATCHES = (
    "makes several images of one",
    "works on the finished tensor, behind the last step of ours",
    "is about boxes or points: folders of images have none",
    "mixes whole batches: it goes behind the loader, or take penstock's in the place of `collate_fn`",
)
NO_STEP = "has no step of ours"
NOT_ADOPTED: dict[str, str] = {
    "FiveCrop": SEVERAL, "TenCrop": SEVERAL,
    "RandomErasing": ON_TENSORS, "LinearTransformation": ON_TENSORS, "GaussianNoise": ON_TENSORS, "ToPureTensor": ON_TENSORS,
    "ClampBoundingBoxes": ON_BOXES, "ClampKeyPoints": ON_BOXES, "ConvertBoundingBoxFormat": ON_BOXES, "SetClampingMode": ON_BOXES,
    "SanitizeBoundingBoxes": ON_BOXES, "SanitizeKeyPoints": ON_BOXES, "RandomIoUCrop": ON_BOXES,
    "CutMix": ON_BATCHES, "MixUp": ON_BATCHES,
    "UniformTemporalSubsample": "is for videos",
    "Lambda": "is a function of yours, which may do anything",
    "Transform": "is what transforms of your own derive from: it may do anything",
    "ToPILImage": "has nothing to do: images are pictures until they become tensors",
    "RGB": "has nothing to do: folders give RGB",
    "RandomPerspective": NO_STEP, "ElasticTransform": NO_STEP, "JPEG": NO_STEP, "RandomChannelPermutation": NO_STEP,
    "RandomPhotometricDistort": NO_STEP,
}  # fmt: skip
"""Why each other image transform of v2 is called as it is, in Python."""
NOT_ADOPTED_V1: dict[str, str] = {
    "RandomChoice": "draws from Python's `random`; v2's is adopted",
    "RandomOrder": "draws from Python's `random`; v2's is adopted",
}
