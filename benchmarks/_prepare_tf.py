"""The workloads in TensorFlow's ops, for tf.data: written as graphs, bilinear without antialiasing, decoding only the crop where
the crop comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

STRENGTH = 0.3
"""Magnitude 9 of 31 bins."""


def preparing(workload: str, mean: Sequence[float], std: Sequence[float]) -> Callable[[Any], Any]:
    """From a path to float32, channels x height x width."""
    shift, scale = tf.constant(mean, tf.float32) * 255, tf.constant(std, tf.float32) * 255

    def prepare(path: Any) -> Any:
        data = tf.io.read_file(path)
        if workload == "W3":
            image = rand_augment(tf.io.decode_jpeg(data, channels=3))
            image = tf.image.crop_to_bounding_box(image, *place(tf.shape(image)))
        else:
            at = tf.stack(place(tf.image.extract_jpeg_shape(data)))
            image = tf.image.decode_and_crop_jpeg(data, at, channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(image, [224, 224]))
        if workload == "W1":
            image = tf.cast(rand_augment(saturated(image)), tf.float32)
        return tf.transpose((image - shift) / scale, [2, 0, 1])

    return prepare


def place(shape: Any) -> tuple[Any, Any, Any, Any]:
    """Top, left, height and width."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape,
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        area_range=(0.08, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3),
        max_attempts=10,
        min_object_covered=0.0,
    )
    return begin[0], begin[1], size[0], size[1]


def saturated(image: Any) -> Any:
    return tf.cast(tf.clip_by_value(image, 0.0, 255.0), tf.uint8)


def between(one: Any, other: Any, factor: Any) -> Any:
    """From `one` towards `other`, and beyond it."""
    one, other = tf.cast(one, tf.float32), tf.cast(other, tf.float32)
    return saturated(one + factor * (other - one))


def warp(image: Any, *matrix: Any) -> Any:
    row = tf.stack([tf.cast(value, tf.float32) for value in (*matrix, 0, 0)])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=row[None],
        output_shape=tf.shape(image)[:2],
        fill_value=0.0,
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]


def rotate(image: Any, sign: Any) -> Any:
    angle = sign * 30 * STRENGTH * math.pi / 180
    cos, sin = tf.cos(angle), tf.sin(angle)
    down, across = (tf.cast(tf.shape(image)[axis] - 1, tf.float32) / 2 for axis in (0, 1))
    return warp(
        image,
        cos,
        -sin,
        across - cos * across + sin * down,
        sin,
        cos,
        down - sin * across - cos * down,
    )


def grey(image: Any) -> Any:
    return tf.image.rgb_to_grayscale(image)


def contrast(image: Any, factor: Any) -> Any:
    mean = tf.round(tf.reduce_mean(tf.cast(grey(image), tf.float32)))
    return between(tf.fill(tf.shape(image), mean), image, factor)


def sharpness(image: Any, factor: Any) -> Any:
    kernel = tf.constant([[1, 1, 1], [1, 5, 1], [1, 1, 1]], tf.float32) / 13
    kernel = tf.tile(kernel[:, :, None, None], [1, 1, 3, 1])
    smooth = tf.nn.depthwise_conv2d(tf.cast(image, tf.float32)[None], kernel, [1, 1, 1, 1], "SAME")[0]
    return between(smooth, image, factor)


def autocontrast(image: Any) -> Any:
    levels = tf.cast(image, tf.float32)
    low, high = tf.reduce_min(levels, [0, 1]), tf.reduce_max(levels, [0, 1])
    return saturated((levels - low) * 255 / tf.maximum(high - low, 1.0))


def equalize(image: Any) -> Any:
    def one(levels: Any) -> Any:
        levels = tf.cast(levels, tf.int32)
        counts = tf.math.bincount(tf.reshape(levels, [-1]), minlength=256, maxlength=256)
        step = (tf.reduce_sum(counts) - tf.boolean_mask(counts, counts > 0)[-1]) // 255
        table = (tf.cumsum(counts, exclusive=True) + step // 2) // tf.maximum(step, 1)
        table = tf.where(step > 0, tf.clip_by_value(table, 0, 255), tf.range(256))
        return tf.gather(tf.cast(table, tf.uint8), levels)

    return tf.stack([one(image[:, :, channel]) for channel in range(3)], axis=-1)


def rand_augment(image: Any) -> Any:
    for _ in range(2):
        sign = tf.cast(2 * tf.random.uniform([], 0, 2, tf.int32) - 1, tf.float32)
        image = one_of_all(image, sign, 1 + sign * 0.9 * STRENGTH)
        image.set_shape([None, None, 3])
    return image


def one_of_all(image: Any, sign: Any, factor: Any) -> Any:
    height, width = (tf.cast(tf.shape(image)[axis], tf.float32) for axis in (0, 1))
    shear, shift = sign * 0.3 * STRENGTH, sign * 150 / 331 * STRENGTH
    bright = tf.cast(255 * (1 - STRENGTH), tf.uint8)
    choices = [
        lambda: image,
        lambda: warp(image, 1, shear, 0, 0, 1, 0),
        lambda: warp(image, 1, 0, 0, shear, 1, 0),
        lambda: warp(image, 1, 0, shift * width, 0, 1, 0),
        lambda: warp(image, 1, 0, 0, 0, 1, shift * height),
        lambda: rotate(image, sign),
        lambda: between(tf.zeros_like(image), image, factor),
        lambda: between(grey(image), image, factor),
        lambda: contrast(image, factor),
        lambda: sharpness(image, factor),
        lambda: tf.bitwise.bitwise_and(image, tf.constant(0xFE, tf.uint8)),
        lambda: tf.where(image < bright, image, 255 - image),
        lambda: autocontrast(image),
        lambda: equalize(image),
    ]
    return tf.switch_case(tf.random.uniform([], 0, len(choices), tf.int32), choices)
