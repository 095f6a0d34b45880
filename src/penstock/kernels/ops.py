"""The kernel that runs one pass of every row: `run_round`.

Rule 1: pass, reader and items are data. A launch is the same whatever the samples' programs are.
Rule 2: programs take blocks of pixels in turns, so that a grid fits images of any size.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.kernels import words as w
from penstock.kernels.pixels import blended, changed, grey, level_table, moved, reflected

PASSES, START, OUT = tl.constexpr(w.PASSES), tl.constexpr(w.START), tl.constexpr(w.OUT)
SCRATCH, FIRST_SLOT, AREA = tl.constexpr(w.SCRATCH), tl.constexpr(w.FIRST_SLOT), tl.constexpr(w.AREA)
HEAD_WORDS, READER, BASE = tl.constexpr(w.HEAD_WORDS), tl.constexpr(w.READER), tl.constexpr(w.BASE)
OFFSET, STRIDE_Y, STRIDE_X = tl.constexpr(w.OFFSET), tl.constexpr(w.STRIDE_Y), tl.constexpr(w.STRIDE_X)
STRIDE_C, IN_H, IN_W = tl.constexpr(w.STRIDE_C), tl.constexpr(w.IN_H), tl.constexpr(w.IN_W)
OUT_H, OUT_W, SINK = tl.constexpr(w.OUT_H), tl.constexpr(w.OUT_W), tl.constexpr(w.SINK)
TO, STATS, SLOT = tl.constexpr(w.TO), tl.constexpr(w.STATS), tl.constexpr(w.SLOT)
TABLE, TABLE_SLOT, ITEMS = tl.constexpr(w.TABLE), tl.constexpr(w.TABLE_SLOT), tl.constexpr(w.ITEMS)
COUNT, AXIS, TAPS = tl.constexpr(w.COUNT), tl.constexpr(w.AXIS), tl.constexpr(w.TAPS)
WEIGHTS, FILTER, POSITIONS = tl.constexpr(w.WEIGHTS), tl.constexpr(w.FILTER), tl.constexpr(w.POSITIONS)
LIST, LENGTH, FILL = tl.constexpr(w.LIST), tl.constexpr(w.LENGTH), tl.constexpr(w.FILL)
REAL, PASS_WORDS, TAPPED = tl.constexpr(w.REAL), tl.constexpr(w.PASS_WORDS), tl.constexpr(w.TAPPED)
SHARPEN, BILINEAR, MIXED = tl.constexpr(w.SHARPEN), tl.constexpr(w.BILINEAR), tl.constexpr(w.MIXED)
DOWN, GAUSS, TO_SCRATCH = tl.constexpr(w.DOWN), tl.constexpr(w.GAUSS), tl.constexpr(w.TO_SCRATCH)
TO_BATCH, GREYS, LEVELS = tl.constexpr(w.TO_BATCH), tl.constexpr(w.GREYS), tl.constexpr(w.LEVELS)
ITEM_WORDS, CONTRAST = tl.constexpr(w.ITEM_WORDS), tl.constexpr(w.CONTRAST)
IN_BLACK = tl.constexpr(w.IN_BLACK)
BITS, HALF = tl.constexpr(22), tl.constexpr(1 << 21)
"""Fractional bits of weights, and the rounding term of their sums."""


@triton.jit
def taken(source, place, stride_c, there):
    """Pixels, by channel."""
    r = tl.load(source + place, mask=there, other=0).to(tl.int32)
    g = tl.load(source + place + stride_c, mask=there, other=0).to(tl.int32)
    b = tl.load(source + place + 2 * stride_c, mask=there, other=0).to(tl.int32)
    return r, g, b


@triton.jit
def measures(head):
    """Of the image that a pass reads: its strides, height and width."""
    stride_y = tl.load(head + STRIDE_Y).to(tl.int32)
    stride_x = tl.load(head + STRIDE_X).to(tl.int32)
    stride_c = tl.load(head + STRIDE_C).to(tl.int32)
    return stride_y, stride_x, stride_c, tl.load(head + IN_H).to(tl.int32), tl.load(head + IN_W).to(tl.int32)


@triton.jit
def cut(total):
    return tl.minimum(tl.maximum(total >> BITS, 0), 255)


@triton.jit
def summed(row, head, source, y, x, there):
    """Weighted sums along an axis, in Pillow's fixed point."""
    stride_y, stride_x, stride_c, height, width = measures(head)
    axis = tl.load(head + AXIS)
    positions = tl.load(head + POSITIONS).to(tl.int32)
    address = tl.load(row + SCRATCH) + tl.load(head + WEIGHTS)
    weights = address.to(tl.pointer_type(tl.int32))
    down = axis == DOWN
    at = tl.where(down, y, x)
    line = tl.where(down, x * stride_x, y * stride_y)
    stride = tl.where(down, stride_y, stride_x)
    length = tl.where(down, height, width)
    folds = tl.load(head + FILTER) == GAUSS
    first = tl.load(weights + at, mask=there, other=0)
    red = tl.zeros_like(y) + HALF
    green = red
    blue = red
    for tap in range(tl.load(head + TAPS).to(tl.int32)):
        weight = tl.load(weights + (tap + 1) * positions + at, mask=there, other=0)
        from_ = tl.minimum(first + tap, length - 1)
        if folds:
            from_ = reflected(first + tap, length)
        r, g, b = taken(source, line + from_ * stride, stride_c, there)
        red += r * weight
        green += g * weight
        blue += b * weight
    return cut(red), cut(green), cut(blue)


@triton.jit
def sharpened(head, real, source, y, x, there):
    """Blended with its smooth version, in which a pixel counts five times and its neighbours once; the border as it is."""
    stride_y, stride_x, stride_c, height, width = measures(head)
    share = tl.load(real + REAL).to(tl.float32)
    place = y * stride_y + x * stride_x
    r, g, b = taken(source, place, stride_c, there)
    inner = there & (y > 0) & (y < height - 1) & (x > 0) & (x < width - 1)
    red = r * 4 + 6
    green = g * 4 + 6
    blue = b * 4 + 6
    for near in range(9):
        beside = place + (near // 3 - 1) * stride_y + (near % 3 - 1) * stride_x
        nr, ng, nb = taken(source, beside, stride_c, inner)
        red += nr
        green += ng
        blue += nb
    red = tl.where(inner, blended(red // 13, r, share), r)
    green = tl.where(inner, blended(green // 13, g, share), g)
    blue = tl.where(inner, blended(blue // 13, b, share), b)
    return red, green, blue


@triton.jit
def between(one, two, share):
    return one.to(tl.float64) + (two.to(tl.float64) - one.to(tl.float64)) * share


@triton.jit
def interpolated(head, real, source, y, x, there, in_black: tl.constexpr):
    """Under an affine map, between four pixels, in double precision as Pillow does it; its colour outside. `in_black`: as torch does it, to
    which pixels outside are black, and which rounds."""
    stride_y, stride_x, stride_c, height, width = measures(head)
    fill = tl.load(head + FILL).to(tl.int32)
    mid_x = x.to(tl.float64) + 0.5
    mid_y = y.to(tl.float64) + 0.5
    at_x = tl.load(real + REAL) * mid_x + tl.load(real + REAL + 1) * mid_y + tl.load(real + REAL + 2)
    at_y = tl.load(real + REAL + 3) * mid_x + tl.load(real + REAL + 4) * mid_y + tl.load(real + REAL + 5)
    if in_black:
        inside = there & (at_x > -0.5) & (at_x < width + 0.5) & (at_y > -0.5) & (at_y < height + 0.5)
    else:
        inside = there & (at_x >= 0.0) & (at_x < width) & (at_y >= 0.0) & (at_y < height)
    at_x = tl.where(inside, at_x - 0.5, 0.0)
    at_y = tl.where(inside, at_y - 0.5, 0.0)
    left = tl.floor(at_x).to(tl.int32)
    above = tl.floor(at_y).to(tl.int32)
    across = at_x - left.to(tl.float64)
    down = at_y - above.to(tl.float64)
    x0 = tl.minimum(tl.maximum(left, 0), width - 1) * stride_x
    x1 = tl.minimum(tl.maximum(left + 1, 0), width - 1) * stride_x
    y0 = tl.minimum(tl.maximum(above, 0), height - 1) * stride_y
    y1 = tl.minimum(tl.maximum(above + 1, 0), height - 1) * stride_y
    on_left = inside
    on_right = inside
    on_top = inside
    below = inside
    if in_black:
        on_left = inside & (left >= 0)
        on_right = inside & (left + 1 < width)
        on_top = inside & (above >= 0)
        below = inside & (above + 1 < height)
    r0, g0, b0 = taken(source, y0 + x0, stride_c, on_top & on_left)
    r1, g1, b1 = taken(source, y0 + x1, stride_c, on_top & on_right)
    r2, g2, b2 = taken(source, y1 + x0, stride_c, below & on_left)
    r3, g3, b3 = taken(source, y1 + x1, stride_c, below & on_right)
    red = between(between(r0, r1, across), between(r2, r3, across), down)
    green = between(between(g0, g1, across), between(g2, g3, across), down)
    blue = between(between(b0, b1, across), between(b2, b3, across), down)
    if in_black:
        red += 0.5
        green += 0.5
        blue += 0.5
    red = tl.where(inside, red.to(tl.int32), fill & 255)
    green = tl.where(inside, green.to(tl.int32), (fill >> 8) & 255)
    blue = tl.where(inside, blue.to(tl.int32), fill >> 16)
    return red, green, blue


@triton.jit
def mixed(row, entries, weights, count, y, x, there):
    """Several images, each by its weight, in single precision."""
    red = tl.zeros_like(y).to(tl.float32)
    green = red
    blue = red
    for at in range(count):
        entry = entries + at * ITEM_WORDS
        address = tl.load(row + tl.load(entry + 1)) + tl.load(entry + 2)
        place = y * tl.load(entry + 3).to(tl.int32) + x * tl.load(entry + 4).to(tl.int32)
        weight = tl.load(weights + at * ITEM_WORDS + 8).to(tl.float32)
        r, g, b = taken(address.to(tl.pointer_type(tl.uint8)), place, tl.load(entry + 5).to(tl.int32), there)
        red += r.to(tl.float32) * weight
        green += g.to(tl.float32) * weight
        blue += b.to(tl.float32) * weight
    red = tl.minimum(tl.maximum(red, 0.0), 255.0)
    green = tl.minimum(tl.maximum(green, 0.0), 255.0)
    blue = tl.minimum(tl.maximum(blue, 0.0), 255.0)
    return red.to(tl.int32), green.to(tl.int32), blue.to(tl.int32)


@triton.jit
def read(row, area, real_area, head, real, source, y, x, there):
    """What a pass's reader finds at places."""
    reader = tl.load(head + READER)
    r = tl.zeros_like(y)
    g = r
    b = r
    if reader == TAPPED:
        r, g, b = summed(row, head, source, y, x, there)
    elif reader == SHARPEN:
        r, g, b = sharpened(head, real, source, y, x, there)
    elif reader == BILINEAR:
        r, g, b = interpolated(head, real, source, y, x, there, False)
    elif reader == IN_BLACK:
        r, g, b = interpolated(head, real, source, y, x, there, True)
    elif reader == MIXED:
        first = tl.load(head + LIST)
        r, g, b = mixed(row, area + first, real_area + first, tl.load(head + LENGTH), y, x, there)
    else:
        place = y * tl.load(head + STRIDE_Y).to(tl.int32) + x * tl.load(head + STRIDE_X).to(tl.int32)
        r, g, b = taken(source, place, tl.load(head + STRIDE_C).to(tl.int32), there)
    return r, g, b


@triton.jit(do_not_specialize=["number"])  # one kernel for all rounds
def run_round(
    words, reals, counts, sums, luts, tail, number,
    stride_c, stride_y, stride_x, channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Round `number` of row `program_id(1)`: blocks of its pixels from the reader through the items to the sink."""
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    begin = tl.load(words + tl.program_id(1))
    row = words + begin
    at = number - tl.load(row + START)
    if (at >= 0) & (at < tl.load(row + PASSES)):
        area = row + tl.load(row + AREA)
        real_area = reals + begin + tl.load(row + AREA)
        head = row + HEAD_WORDS + at * PASS_WORDS
        real = reals + begin + HEAD_WORDS + at * PASS_WORDS
        first = tl.load(head + ITEMS)
        count = tl.load(head + COUNT).to(tl.int32)
        slots = tl.load(row + FIRST_SLOT)
        out_w = tl.load(head + OUT_W).to(tl.int32)
        total = tl.load(head + OUT_H).to(tl.int32) * out_w
        blocks = tl.cdiv(total, block)

        # A table is made by every program for itself, in its own place: sooner done than another launch.
        table = tl.load(head + TABLE)
        lut = luts + (tl.program_id(1) * parts + part) * 768
        mean = tl.zeros((), tl.int32)
        if (table != 0) & (part < blocks):
            slot = slots + tl.load(head + TABLE_SLOT)
            if table == CONTRAST:
                pixels = tl.load(head + IN_H) * tl.load(head + IN_W)
                mean = ((2 * tl.load(sums + slot) + pixels) // (2 * pixels)).to(tl.int32)
            else:
                levels = tl.arange(0, 256)
                for channel in tl.static_range(3):
                    held = tl.load(counts + slot * 768 + channel * 256 + levels)
                    tl.store(lut + channel * 256 + levels, level_table(held, table).to(tl.uint8))
                tl.debug_barrier()

        source = (tl.load(row + tl.load(head + BASE)) + tl.load(head + OFFSET)).to(tl.pointer_type(tl.uint8))
        sink = tl.load(head + SINK)
        scratch = (tl.load(row + SCRATCH) + tl.load(head + TO)).to(tl.pointer_type(tl.uint8))
        out = tl.load(row + OUT).to(tail.dtype)
        statistics = tl.load(head + STATS)
        reds = tl.zeros((256,), tl.int32)
        greens = tl.zeros((256,), tl.int32)
        blues = tl.zeros((256,), tl.int32)
        greys = tl.zeros((), tl.int64)
        for piece in range(part, blocks, parts):
            place = piece * block + tl.arange(0, block)
            valid = place < total
            y = place // out_w
            x = place % out_w
            from_y, from_x, filled = moved(area + first, real_area + first, count, y, x)
            there = valid & (filled < 0)
            r, g, b = read(row, area, real_area, head, real, source, from_y, from_x, there)
            r, g, b = changed(area + first, real_area + first, count, r, g, b, filled, mean, lut)
            if sink == TO_SCRATCH:
                tl.store(scratch + place, r.to(tl.uint8), mask=valid)
                tl.store(scratch + place + total, g.to(tl.uint8), mask=valid)
                tl.store(scratch + place + 2 * total, b.to(tl.uint8), mask=valid)
            elif sink == TO_BATCH:
                to = out + y * stride_y + x * stride_x
                tl.store(to, tl.load(tail + r), mask=valid)
                if channels == 3:
                    tl.store(to + stride_c, tl.load(tail + 256 + g), mask=valid)
                    tl.store(to + 2 * stride_c, tl.load(tail + 512 + b), mask=valid)
            if statistics == LEVELS:
                reds += tl.histogram(r, 256, mask=valid)
                greens += tl.histogram(g, 256, mask=valid)
                blues += tl.histogram(b, 256, mask=valid)
            elif statistics == GREYS:
                greys += tl.sum(tl.where(valid, grey(r, g, b), 0), axis=0).to(tl.int64)
        if (statistics != 0) & (part < blocks):
            slot = slots + tl.load(head + SLOT)
            if statistics == LEVELS:
                levels = tl.arange(0, 256)
                tl.atomic_add(counts + slot * 768 + levels, reds, sem="relaxed")
                tl.atomic_add(counts + slot * 768 + 256 + levels, greens, sem="relaxed")
                tl.atomic_add(counts + slot * 768 + 512 + levels, blues, sem="relaxed")
            else:
                tl.atomic_add(sums + slot, greys, sem="relaxed")
