"""Batches of prepared photos without end, by peers with loaders of their own: Grain, DALI on the CPU.

None of them antialiases as run here. Grain runs the same OpenCV ops as torch's loader does, DALI its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from _prepare_subjects import MEAN, PASSES, STD, Setting


def grain_opencv(setting: Setting) -> Iterator[Any]:
    import sys

    import _prepare_cv
    import grain
    from absl import flags

    flags.FLAGS(sys.argv[:1])
    dataset = grain.MapDataset.source(setting.files).shuffle(seed=0).repeat(PASSES)
    reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=8)
    rows = dataset.map(_prepare_cv.Prepare(setting.workload)).to_iter_dataset(reading)
    yield from rows.batch(setting.batch_size, drop_remainder=True).mp_prefetch(
        grain.MultiprocessingOptions(num_workers=setting.workers)
    )


def dali_cpu(setting: Setting) -> Iterator[Any]:
    import warnings

    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.auto_aug import rand_augment

    warnings.simplefilter("ignore")
    resized = {"size": [224, 224], "interp_type": types.INTERP_LINEAR, "antialias": False}

    @pipeline_def(
        batch_size=setting.batch_size, num_threads=setting.workers, device_id=None, enable_conditionals=True
    )
    def pipeline() -> Any:
        data, _ = fn.readers.file(files=setting.files, random_shuffle=True, initial_fill=512)
        if setting.workload == "W3":
            image = fn.decoders.image(data, device="cpu", output_type=types.RGB)
            image = rand_augment.rand_augment(image, n=2, m=9)
            image = fn.random_resized_crop(image, **resized)
        else:
            image = fn.decoders.image_random_crop(data, device="cpu", output_type=types.RGB)
            image = fn.resize(image, **resized)
        if setting.workload == "W1":
            image = fn.flip(image, horizontal=fn.random.coin_flip())
            image = rand_augment.rand_augment(image, n=2, m=9, shape=[224, 224])
        mirror = 0 if setting.workload == "W1" else fn.random.coin_flip()
        return fn.crop_mirror_normalize(
            image,
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[255 * mean for mean in MEAN],
            std=[255 * std for std in STD],
            mirror=mirror,
        )

    running = pipeline()
    running.build()
    while True:
        yield running.run()[0].as_tensor()
