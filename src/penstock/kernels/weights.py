"""Prepare a task's passes: clear statistics, and compute weights of sums.

Weights are computed as the CPU's libraries do, so that the sums are equal: Pillow's in double precision without contraction
(`enable_fp_fusion=False`), OpenCV's in its fixed point.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.kernels import words as w

PASSES, SCRATCH, FIRST_SLOT = tl.constexpr(w.PASSES), tl.constexpr(w.SCRATCH), tl.constexpr(w.FIRST_SLOT)
HEAD_WORDS, READER, IN_H = tl.constexpr(w.HEAD_WORDS), tl.constexpr(w.READER), tl.constexpr(w.IN_H)
IN_W, STATS, SLOT = tl.constexpr(w.IN_W), tl.constexpr(w.STATS), tl.constexpr(w.SLOT)
AXIS, TAPS, WEIGHTS = tl.constexpr(w.AXIS), tl.constexpr(w.TAPS), tl.constexpr(w.WEIGHTS)
FILTER, POSITIONS, REAL = tl.constexpr(w.FILTER), tl.constexpr(w.POSITIONS), tl.constexpr(w.REAL)
PASS_WORDS, TAPPED, DOWN = tl.constexpr(w.PASS_WORDS), tl.constexpr(w.TAPPED), tl.constexpr(w.DOWN)
CUBIC, LANCZOS, GAUSS = tl.constexpr(w.CUBIC), tl.constexpr(w.LANCZOS), tl.constexpr(w.GAUSS)
LINEAR = tl.constexpr(w.LINEAR)
ONE = tl.constexpr(1 << 22)
"""Weights have 22 fractional bits, as Pillow's."""
PI = tl.constexpr(3.14159265358979323846)


@triton.jit
def filtered(place, kind):
    """Weights at distances, in units of the filter, in double precision as Pillow has them."""
    x = tl.abs(place)
    found = tl.maximum(1.0 - x, 0.0)
    if kind == CUBIC:
        near = (1.5 * x - 2.5) * x * x + 1.0
        far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
        found = tl.where(x < 1.0, near, tl.where(x < 2.0, far, 0.0))
    elif kind == LANCZOS:
        turn = tl.maximum(x, 1e-30) * PI
        third = turn / 3.0
        wave = tl.sin(turn) / turn * (tl.sin(third) / third)
        found = tl.where(x == 0.0, 1.0, tl.where(x < 3.0, wave, 0.0))
    return found


@triton.jit
def pillow_weights(weights, real, kind, taps, length, positions, at, there):
    """Where each sum begins, and its weights in fixed point; zeros behind its end."""
    support = tl.load(real + REAL + 2)
    step = tl.load(real + REAL + 3)
    centre = tl.load(real + REAL) + (at.to(tl.float64) + 0.5) * tl.load(real + REAL + 1)
    low = tl.maximum((centre - support + 0.5).to(tl.int32), 0)
    count = tl.minimum((centre + support + 0.5).to(tl.int32), length) - low
    total = centre * 0.0
    for tap in range(taps):
        weight = filtered(((low + tap).to(tl.float64) - centre + 0.5) * step, kind)
        total += tl.where(tap < count, weight, 0.0)
    tl.store(weights + at, low, mask=there)
    for tap in range(taps):
        weight = filtered(((low + tap).to(tl.float64) - centre + 0.5) * step, kind)
        share = weight / tl.where(total != 0.0, total, 1.0)
        fixed = (tl.where(share < 0.0, -0.5, 0.5) + share * ONE).to(tl.int32)
        tl.store(weights + (tap + 1) * positions + at, tl.where(tap < count, fixed, 0), mask=there)


@triton.jit
def bell(distance, sigma):
    return tl.exp(distance * distance * (-0.5 / (sigma * sigma)))


@triton.jit
def blur_weights(weights, real, taps, positions, at, there):
    """A Gaussian's, in 256ths as OpenCV has them: what one loses by rounding the next one gets, and the middle one the rest."""
    sigma = tl.load(real + REAL)
    half = taps // 2
    none = at.to(tl.float64) * 0.0
    total = none + 1.0
    for tap in range(half):
        total += bell(none + (tap - half), sigma) * 2.0
    tl.store(weights + at, at - half, mask=there)
    error = none
    given = tl.zeros_like(at)
    for tap in range(half):
        share = bell(none + (tap - half), sigma) / total * 256.0 + error
        fixed = tl.floor(share + 0.5)
        error = share - fixed
        given += fixed.to(tl.int32)
        tl.store(weights + (tap + 1) * positions + at, fixed.to(tl.int32) << 14, mask=there)
        tl.store(weights + (taps - tap) * positions + at, fixed.to(tl.int32) << 14, mask=there)
    tl.store(weights + (half + 1) * positions + at, (256 - 2 * given) << 14, mask=there)


@triton.jit
def point_weights(weights, real, kind, length, positions, at, there):
    """OpenCV's two neighbours of a place, or the nearest one; of two that are equally near the later one, where OpenCV takes
    either."""
    if kind == LINEAR:
        place = (at.to(tl.float64) + 0.5) * tl.load(real + REAL) - 0.5
        low = tl.floor(place).to(tl.int32)
        part = place - low.to(tl.float64)
        outside = (low < 0) | (low >= length - 1)
        share = tl.where(outside, 0.0, part)
        two = (share * ONE + 0.5).to(tl.int32)
        tl.store(weights + at, tl.minimum(tl.maximum(low, 0), length - 1), mask=there)
        tl.store(weights + positions + at, 0 - two + ONE, mask=there)
        tl.store(weights + 2 * positions + at, two, mask=there)
    else:
        nearest = (2 * at + 1).to(tl.int64) * length // (2 * positions)
        tl.store(weights + at, nearest.to(tl.int32), mask=there)
        tl.store(weights + positions + at, tl.zeros_like(at) + ONE, mask=there)


@triton.jit
def prepare(words, reals, counts, sums, block: tl.constexpr):
    """For pass `program_id(1)` of row `program_id(2)`: empty statistics, and the weights of its sums."""
    part = tl.program_id(0)
    number = tl.program_id(1)
    begin = tl.load(words + tl.program_id(2))
    row = words + begin
    if number < tl.load(row + PASSES):
        head = row + HEAD_WORDS + number * PASS_WORDS
        real = reals + begin + HEAD_WORDS + number * PASS_WORDS
        if (tl.load(head + STATS) != 0) & (part == 0):
            slot = tl.load(row + FIRST_SLOT) + tl.load(head + SLOT)
            for channel in tl.static_range(3):
                tl.store(counts + slot * 768 + channel * 256 + tl.arange(0, 256), tl.zeros((256,), tl.int32))
            tl.store(sums + slot, tl.zeros((), tl.int64))
        if tl.load(head + READER) == TAPPED:
            kind = tl.load(head + FILTER)
            length = tl.load(head + IN_W).to(tl.int32)
            if tl.load(head + AXIS) == DOWN:
                length = tl.load(head + IN_H).to(tl.int32)
            positions = tl.load(head + POSITIONS).to(tl.int32)
            address = tl.load(row + SCRATCH) + tl.load(head + WEIGHTS)
            weights = address.to(tl.pointer_type(tl.int32))
            for piece in range(part, tl.cdiv(positions, block), tl.num_programs(0)):
                at = piece * block + tl.arange(0, block)
                taps = tl.load(head + TAPS).to(tl.int32)
                if kind < GAUSS:
                    pillow_weights(weights, real, kind, taps, length, positions, at, at < positions)
                elif kind == GAUSS:
                    blur_weights(weights, real, taps, positions, at, at < positions)
                else:
                    point_weights(weights, real, kind, length, positions, at, at < positions)
