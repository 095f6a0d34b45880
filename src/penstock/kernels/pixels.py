"""Pixel changes and moves for the kernels: Pillow's arithmetic, bit for bit.

Rule 1: no contraction (a * b + c in one rounding): kernels are launched with `enable_fp_fusion=False`.
Rule 2: pixels are int32 vectors, one per channel; a vector is a block of an image's pixels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.kernels import words as w
from penstock.transforms.cpu import pillow_fuses

CODE, HEIGHT, WIDTH = tl.constexpr(w.CODE), tl.constexpr(w.HEIGHT), tl.constexpr(w.WIDTH)
COLOUR, NUMBER, ITEM_WORDS = tl.constexpr(w.COLOUR), tl.constexpr(w.NUMBER), tl.constexpr(w.ITEM_WORDS)
SHIFT, FIXED, FLOAT = tl.constexpr(w.SHIFT), tl.constexpr(w.FIXED), tl.constexpr(w.FLOAT)
FIRST_CHANGE, BLEND = tl.constexpr(w.FIRST_CHANGE), tl.constexpr(w.BLEND)
POSTERIZE, SOLARIZE, INVERT = tl.constexpr(w.POSTERIZE), tl.constexpr(w.SOLARIZE), tl.constexpr(w.INVERT)
CONTRAST, AUTOCONTRAST = tl.constexpr(w.CONTRAST), tl.constexpr(w.AUTOCONTRAST)
EQUALIZE, SATURATION, HUE = tl.constexpr(w.EQUALIZE), tl.constexpr(w.SATURATION), tl.constexpr(w.HUE)
GRAY, EDGE, REFLECT = tl.constexpr(w.GRAY), tl.constexpr(w.EDGE), tl.constexpr(w.REFLECT)
SYMMETRIC = tl.constexpr(w.SYMMETRIC)
FUSES = tl.constexpr(pillow_fuses())


@triton.jit
def grey(r, g, b):
    """Pillow's grey of a pixel."""
    return (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16


@triton.jit
def blended(low, value, share):
    """low + share * (value - low), cut towards 0 in single precision; rounded to that once, where Pillow does so on this machine."""
    if FUSES:  # in double precision nothing is lost before
        found = (low.to(tl.float64) + share.to(tl.float64) * (value - low).to(tl.float64)).to(tl.float32)
    else:
        found = low.to(tl.float32) + share * (value - low).to(tl.float32)
    return tl.minimum(tl.maximum(found, 0.0), 255.0).to(tl.int32)


@triton.jit
def hue_of(r, g, b, highest, spread):
    """Pillow's hue, 0 to 255, of pixels that are not grey; it computes partly in single, partly in double precision."""
    width = tl.maximum(spread, 1).to(tl.float32)
    rc = tl.div_rn((highest - r).to(tl.float32), width)
    gc = tl.div_rn((highest - g).to(tl.float32), width)
    bc = tl.div_rn((highest - b).to(tl.float32), width)
    green = (rc.to(tl.float64) + 2.0 - bc.to(tl.float64)).to(tl.float32)
    blue = (gc.to(tl.float64) + 4.0 - rc.to(tl.float64)).to(tl.float32)
    h = tl.where(r == highest, bc - gc, tl.where(g == highest, green, blue)).to(tl.float64)
    turns = h / 6.0 + 1.0
    part = (turns - tl.floor(turns)).to(tl.float32).to(tl.float64)
    return tl.minimum(tl.maximum((part * 255.0).to(tl.int32), 0), 255)


@triton.jit
def rounded(value):
    """Of a double that is not negative, as C's round."""
    return tl.minimum(tl.floor(value + 0.5).to(tl.int32), 255)


@triton.jit
def hue(r, g, b, shift):
    """To Pillow's HSV in bytes, the hue turned, and back."""
    highest = tl.maximum(r, tl.maximum(g, b))
    spread = highest - tl.minimum(r, tl.minimum(g, b))
    turned = (hue_of(r, g, b, highest, spread) + shift) & 255
    share = tl.div_rn(spread.to(tl.float32), tl.maximum(highest, 1).to(tl.float32))
    strength = tl.minimum((share.to(tl.float64) * 255.0).to(tl.int32), 255)
    place = turned.to(tl.float64) * 6.0 / 255.0
    sector = tl.floor(place)
    f = (place - sector).to(tl.float32).to(tl.float64)
    s = (strength.to(tl.float64) / 255.0).to(tl.float32).to(tl.float64)
    v = highest.to(tl.float64)
    p = rounded(v * (1.0 - s))
    q = rounded(v * (1.0 - s * f))
    t = rounded(v * (1.0 - s * (1.0 - f)))
    case = sector.to(tl.int32) % 6
    red = tl.where((case == 0) | (case == 5), highest, tl.where(case == 1, q, tl.where(case == 4, t, p)))
    green = tl.where((case == 1) | (case == 2), highest, tl.where(case == 0, t, tl.where(case == 3, q, p)))
    blue = tl.where((case == 3) | (case == 4), highest, tl.where(case == 2, t, tl.where(case == 5, q, p)))
    plain = (spread == 0) | (strength == 0)
    return tl.where(plain, highest, red), tl.where(plain, highest, green), tl.where(plain, highest, blue)


@triton.jit
def reflected(place, length):
    """Beyond the edge back again, the edge itself once."""
    period = tl.maximum(2 * length - 2, 1)
    back = tl.abs(place) % period
    return tl.minimum(back, tl.where(length > 1, 2 * length - 2 - back, 0))


@triton.jit
def bordered(place, length, mode):
    """What a place outside of 0..length - 1 stands for; with no mode, itself."""
    found = place
    if mode == EDGE:
        found = tl.minimum(tl.maximum(place, 0), length - 1)
    elif mode == REFLECT:
        found = reflected(place, length)
    elif mode == SYMMETRIC:
        folded = tl.where(place < 0, -1 - place, place) % (2 * length)
        found = tl.minimum(folded, 2 * length - 1 - folded)
    return found


@triton.jit
def mapped(item, real, code, y, x, height, width):
    """Where one move takes pixels from."""
    ny = y
    nx = x
    if code == SHIFT:
        mode = tl.load(item + NUMBER + 4)
        ny = y * tl.load(item + NUMBER).to(tl.int32) + tl.load(item + NUMBER + 1).to(tl.int32)
        nx = x * tl.load(item + NUMBER + 2).to(tl.int32) + tl.load(item + NUMBER + 3).to(tl.int32)
        ny = bordered(ny, height, mode)
        nx = bordered(nx, width, mode)
    elif code == FIXED:
        far_x = x.to(tl.int64)
        far_y = y.to(tl.int64)
        nx = (
            (far_x * tl.load(item + NUMBER) + far_y * tl.load(item + NUMBER + 1) + tl.load(item + NUMBER + 2))
            >> 16
        ).to(tl.int32)
        ny = (
            (
                far_x * tl.load(item + NUMBER + 3)
                + far_y * tl.load(item + NUMBER + 4)
                + tl.load(item + NUMBER + 5)
            )
            >> 16
        ).to(tl.int32)
    elif code == FLOAT:
        mid_x = x.to(tl.float64) + 0.5
        mid_y = y.to(tl.float64) + 0.5
        at_x = (
            tl.load(real + NUMBER) * mid_x + tl.load(real + NUMBER + 1) * mid_y + tl.load(real + NUMBER + 2)
        )
        at_y = (
            tl.load(real + NUMBER + 3) * mid_x
            + tl.load(real + NUMBER + 4) * mid_y
            + tl.load(real + NUMBER + 5)
        )
        nx = tl.where((at_x < 0.0) | (at_x >= width), -1.0, at_x).to(tl.int32)
        ny = tl.where((at_y < 0.0) | (at_y >= height), -1.0, at_y).to(tl.int32)
    return ny, nx


@triton.jit
def moved(items, reals, count, y, x):
    """Places of output pixels through all moves, from the last to the first, to places in what is read; and for each pixel the
    item that colours it, because the place it comes from is outside: -1 for none."""
    filled = tl.zeros_like(y) - 1
    for back in range(count):
        at = count - 1 - back
        item = items + at * ITEM_WORDS
        code = tl.load(item + CODE)
        if code < FIRST_CHANGE:
            height = tl.load(item + HEIGHT).to(tl.int32)
            width = tl.load(item + WIDTH).to(tl.int32)
            ny, nx = mapped(item, reals + at * ITEM_WORDS, code, y, x, height, width)
            gone = (ny < 0) | (ny >= height) | (nx < 0) | (nx >= width)
            if code > FLOAT:  # what is erased is as if it came from outside
                top = tl.load(item + NUMBER).to(tl.int32)
                left = tl.load(item + NUMBER + 1).to(tl.int32)
                below = top + tl.load(item + NUMBER + 2).to(tl.int32)
                right = left + tl.load(item + NUMBER + 3).to(tl.int32)
                gone = (ny >= top) & (ny < below) & (nx >= left) & (nx < right)
            filled = tl.where(gone & (filled < 0), at, filled)
            y = tl.where(gone, 0, ny)
            x = tl.where(gone, 0, nx)
    return y, x, filled


@triton.jit
def changed(items, reals, count, r, g, b, filled, mean, lut):
    """All changes, from the first to the last; and the colours of moves where they belong among them."""
    for at in range(count):
        item = items + at * ITEM_WORDS
        code = tl.load(item + CODE)
        number = tl.load(item + HEIGHT).to(tl.int32)
        share = tl.load(reals + at * ITEM_WORDS + NUMBER).to(tl.float32)
        if code < FIRST_CHANGE:
            fill = tl.load(item + COLOUR).to(tl.int32)
            hit = filled == at
            r = tl.where(hit, fill & 255, r)
            g = tl.where(hit, (fill >> 8) & 255, g)
            b = tl.where(hit, fill >> 16, b)
        elif (code == BLEND) | (code == CONTRAST):
            low = tl.where(code == CONTRAST, mean, number)
            r = blended(low, r, share)
            g = blended(low, g, share)
            b = blended(low, b, share)
        elif code == POSTERIZE:
            r = r & number
            g = g & number
            b = b & number
        elif code == SOLARIZE:
            r = tl.where(r < number, r, 255 - r)
            g = tl.where(g < number, g, 255 - g)
            b = tl.where(b < number, b, 255 - b)
        elif code == INVERT:
            r = 255 - r
            g = 255 - g
            b = 255 - b
        elif (code == AUTOCONTRAST) | (code == EQUALIZE):
            r = tl.load(lut + r).to(tl.int32)
            g = tl.load(lut + 256 + g).to(tl.int32)
            b = tl.load(lut + 512 + b).to(tl.int32)
        elif code == SATURATION:
            level = grey(r, g, b)
            r = blended(level, r, share)
            g = blended(level, g, share)
            b = blended(level, b, share)
        elif code == HUE:
            r, g, b = hue(r, g, b, number)
        elif code == GRAY:
            r = grey(r, g, b)
            g = r
            b = r
    return r, g, b


@triton.jit
def level_table(counts, kind):
    """What each level of a channel becomes, from how often each occurs; exact, as `transforms.tables` has it."""
    levels = tl.arange(0, 256)
    highest = tl.max(tl.where(counts > 0, levels, 0), axis=0)
    lowest = tl.min(tl.where(counts > 0, levels, 255), axis=0)
    table = levels
    if highest > lowest:
        if kind == AUTOCONTRAST:
            scale = 255.0 / (highest - lowest).to(tl.float64)
            stretched = levels.to(tl.float64) * scale + (0 - lowest).to(tl.float64) * scale
            table = tl.minimum(tl.maximum(stretched, 0.0), 255.0).to(tl.int32)
        else:
            last = tl.sum(tl.where(levels == highest, counts, 0), axis=0)
            step = (tl.sum(counts, axis=0) - last) // 255
            before = tl.cumsum(counts, axis=0) - counts
            spread = (step // 2 + before) // tl.maximum(step, 1)
            table = tl.where(step > 0, tl.minimum(spread, 255), levels)
    return table
