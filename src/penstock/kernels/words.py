"""The layout of the kernels' table in 8-byte words. Numbers only, so that one copy to the device transfers a whole task.

A table begins with one word per row, its offset. A row is a head, its passes, and their items. Words are integers unless said to be reals.
Addresses are relative to one of the row's three, so that a row can be written before its image has a place.
"""

from __future__ import annotations

WORD = 8
"""Bytes."""

# ---- head of a row
PASSES, START, SOURCE, OUT, SCRATCH, FIRST_SLOT, AREA = range(7)
"""Number of passes; round of the first; addresses of the decoded image, of the slot in the batch, of the scratch; first statistics slot; offset of
the items, in words from the row's beginning."""
HEAD_WORDS = 7

# ---- a pass
(READER, BASE, OFFSET, STRIDE_Y, STRIDE_X, STRIDE_C, IN_H, IN_W) = range(8)
"""The input: OFFSET bytes behind the address in word BASE of the head, an image of IN_H x IN_W."""
(OUT_H, OUT_W, SINK, TO, STATS, SLOT, TABLE, TABLE_SLOT) = range(8, 16)
"""The output: its size, its sink (TO bytes into the scratch), which statistics to count and where; and which table to make of an earlier count."""
ITEMS, COUNT = 16, 17
"""The items: offset of the first, in words from their beginning, and how many."""
AXIS, TAPS, WEIGHTS, FILTER, POSITIONS = range(18, 23)
"""For weighted sums: direction, terms of a sum, offset of the weights in the scratch, their filter, number of sums."""
LIST, LENGTH = 18, 19
"""For mixed images: the items that name them."""
FILL = 23
"""A colour: red, green and blue, a byte each."""
REAL = 24
"""Six reals."""
PASS_WORDS = 30

DIRECT, TAPPED, SHARPEN, BILINEAR, MIXED, IN_BLACK = range(6)
"""Readers. Two interpolate: as Pillow does, with a colour outside; and as torch does, on black."""
DOWN, ACROSS = 0, 1
"""Axes."""
TRIANGLE, CUBIC, LANCZOS, GAUSS, LINEAR, NEAREST = range(6)
"""Filters: Pillow's three, a blur, OpenCV's linear, and nearest."""
NOWHERE, TO_SCRATCH, TO_BATCH = range(3)
"""Sinks."""
GREYS, LEVELS = 1, 2
"""Statistics: sum of greys; histogram of each channel. As a table's kind, one of the codes below."""

# ---- an item
CODE, HEIGHT, WIDTH, COLOUR, NUMBER = range(5)
"""Its code; for moves, the size of their image and the colour outside; six numbers, integers or reals."""
ITEM_WORDS = 10

SHIFT, FIXED, FLOAT, ERASE = range(1, 5)
"""Moves: where an output pixel comes from. A code below FIRST_CHANGE is a move."""
FIRST_CHANGE = 16
BLEND, POSTERIZE, SOLARIZE, INVERT, CONTRAST, AUTOCONTRAST, EQUALIZE, SATURATION, HUE, GRAY = range(16, 26)
"""Changes of a pixel's value."""
CONSTANT, EDGE, REFLECT, SYMMETRIC = range(4)
"""What a shift finds outside of the image."""
