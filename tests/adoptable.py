"""What becomes of each of torchvision's image transforms in an adopted chain: the table of docs/transforms.md, which a test compares with this and
with what torchvision has. The draws themselves are in `penstock.pipeline.their_draws`."""

from __future__ import annotations

LIMITS: dict[str, str] = {
    "AugMix": "without `fill`; nearest or bilinear",
    "AutoAugment": "without `fill`",
    "Compose": "of such transforms, or around all",
    "Pad": "one `fill` for all types, in whole numbers; no negative padding",
    "RandAugment": "without `fill`",
    "RandomAffine": "`fill` in whole numbers",
    "RGB": "where it has nothing to do, as in folders",
    "RandomApply": "of such transforms",
    "RandomChoice": "of such transforms",
    "RandomCrop": "v1: without padding; v2: as Pad",
    "RandomGrayscale": "of colour images",
    "RandomOrder": "of such transforms",
    "RandomPosterize": "1 to 8 bits",
    "RandomRotation": "without `expand` and `center`; `fill` in whole numbers; no fixed angle",
    "RandomZoomOut": "`fill` in whole numbers",
    "TrivialAugmentWide": "without `fill`",
}
"""Which forms of a transform are adopted, where not all are; the others are called as they are, in Python."""
GPU: dict[str, str] = {
    "AugMix": "each op within a level",
    "GaussianBlur": "within a level",
    "RandomAffine": "nearest, bilinear",
    "RandomRotation": "nearest, bilinear",
}
"""What the kernels do of a transform, where that is not all of it to the last bit (docs/benchmarks/gpu.md has what each step's form is worth)."""
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
    "RandomPerspective": NO_STEP, "ElasticTransform": NO_STEP, "JPEG": NO_STEP, "RandomChannelPermutation": NO_STEP,
    "RandomPhotometricDistort": NO_STEP,
}  # fmt: skip
"""Why each other transform of v2 is called as it is, in Python, or does not belong in a folder's chain."""
NOT_ADOPTED_V1: dict[str, str] = {
    "RandomChoice": "draws from Python's `random`; v2's is adopted",
    "RandomOrder": "draws from Python's `random`; v2's is adopted",
}
