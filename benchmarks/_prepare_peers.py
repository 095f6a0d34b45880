"""Batches of prepared photos without end, by peers with loaders of their own: Grain, SPDL, DALI on the CPU, tf.data, FFCV.

None of them antialiases as run here. Grain and SPDL run the same OpenCV ops as torch's loader does; DALI, tf.data and FFCV
their own.
"""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Iterator
from pathlib import Path
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


def spdl_opencv(setting: Setting) -> Iterator[Any]:
    import _prepare_cv
    import numpy as np
    import torch
    from spdl.pipeline import PipelineBuilder

    torch.set_num_threads(1)

    def paths() -> Iterator[str]:
        files = setting.files
        while True:
            yield from random.sample(files, len(files))

    prepare = _prepare_cv.Prepare(setting.workload)

    def strictly(path: str) -> Any:
        """It would leave out samples that fail, and be the faster for it."""
        try:
            return prepare(path)
        except Exception:  # noqa: BLE001, whatever it is
            traceback.print_exc()
            os._exit(1)

    pipeline = (
        PipelineBuilder()
        .add_source(paths())
        .pipe(strictly, concurrency=setting.workers)
        .aggregate(setting.batch_size)
        .pipe(lambda samples: torch.from_numpy(np.stack(samples)))
        .add_sink(2 * setting.workers)
        .build(num_threads=setting.workers + 1)
    )
    with pipeline.auto_stop():
        yield from pipeline.get_iterator(timeout=60)


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


def tf_data(setting: Setting) -> Iterator[Any]:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import _prepare_tf
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = setting.workers
    options.threading.max_intra_op_parallelism = 1
    dataset = tf.data.Dataset.from_tensor_slices(setting.files).shuffle(len(setting.files)).repeat()
    prepare = _prepare_tf.preparing(setting.workload, MEAN, STD)
    dataset = dataset.map(prepare, tf.data.AUTOTUNE, deterministic=False)
    yield from dataset.batch(setting.batch_size).prefetch(tf.data.AUTOTUNE).with_options(options)


def ffcv(setting: Setting) -> Iterator[Any]:
    """Its photos are in a file of its own, encoded again at quality 90. It has no RandAugment."""
    import numpy as np
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage

    if setting.workload != "W2":
        raise RuntimeError("FFCV has no RandAugment")
    mean, std = (np.array(values) * 255 for values in (MEAN, STD))
    image = [RandomResizedCropRGBImageDecoder((224, 224)), RandomHorizontalFlip()]
    image += [NormalizeImage(mean, std, np.float32), ToTensor(), ToTorchImage()]
    loader = Loader(
        str(_ffcv_file(setting)),
        batch_size=setting.batch_size,
        num_workers=setting.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"image": image, "label": [IntDecoder()]},
    )
    while True:
        for images, _ in loader:
            yield images


def _ffcv_file(setting: Setting) -> Path:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter
    from PIL import Image

    path = Path(setting.root) / "photos.beton"
    if not path.exists():

        class Photos:
            def __len__(self) -> int:
                return len(setting.files)

            def __getitem__(self, index: int) -> tuple[Any, int]:
                return Image.open(setting.files[index]).convert("RGB"), index

        half = path.with_suffix(".part")
        fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
        DatasetWriter(str(half), fields, num_workers=setting.workers).from_indexed_dataset(Photos())
        half.rename(path)
    return path
