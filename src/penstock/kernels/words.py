"""The table that kernels read: what stands in which 8-byte word. Number-only, so that one copy to the device says all of a task.

A table begins with one word for each row, where the row lies. A row is a head, its passes, and the items of its passes. Words are
integers, but for those said to be reals. Places in memory are relative to one of the row's three addresses, so that a row can be
written before it is known where its image will lie.
"""

from __future__ import annotations

WORD = 8
"""Bytes."""

# ---- head of a row
PASSES, START, SOURCE, OUT, SCRATCH, FIRST_SLOT, AREA = range(7)
"""How many passes; the round of the first; addresses of the decoded image, of the slot in the batch, of the scratch; the first of
its places for statistics; and where the items begin, in words from the row's beginning."""
HEAD_WORDS = 7

# ---- a pass
(READER, BASE, OFFSET, STRIDE_Y, STRIDE_X, STRIDE_C, IN_H, IN_W) = range(8)
"""What is read, and how: from OFFSET bytes behind the address in word BASE of the head, in an image of IN_H x IN_W."""
(OUT_H, OUT_W, SINK, TO, STATS, SLOT, TABLE, TABLE_SLOT) = range(8, 16)
"""What becomes of it: its size, where it goes (TO bytes into the scratch), what is counted in it and where; and which table is made
of an earlier count."""
ITEMS, COUNT = 16, 17
"""The items: the first, in words from where they begin, and how many."""
AXIS, TAPS, WEIGHTS, FILTER, POSITIONS = range(18, 23)
"""For readers of weighted sums: the direction, terms of a sum, where the weights lie in the scratch, whose they are, how many sums."""
LIST, LENGTH = 18, 19
"""For the reader of mixed images: items that say which."""
FILL = 23
"""A colour: red, green and blue in a byte each."""
REAL = 24
"""Six reals."""
PASS_WORDS = 30

DIRECT, TAPPED, SHARPEN, BILINEAR, MIXED, IN_BLACK = range(6)
"""Readers. Two of them read between pixels: as Pillow does, with a colour outside; and as torch does, in an image that lies on black."""
DOWN, ACROSS = 0, 1
"""Axes."""
TRIANGLE, CUBIC, LANCZOS, GAUSS, LINEAR, NEAREST = range(6)
"""Filters: Pillow's three, a blur, OpenCV's two points, and the nearest one."""
NOWHERE, TO_SCRATCH, TO_BATCH = range(3)
"""Sinks."""
GREYS, LEVELS = 1, 2
"""Statistics: the sum of greys; how often each level occurs in each channel. As a table's kind, one of the codes below."""

# ---- an item
CODE, HEIGHT, WIDTH, COLOUR, NUMBER = range(5)
"""Its code; for moves, the size of the image they move and what is outside; six numbers, integers or reals."""
ITEM_WORDS = 10

SHIFT, FIXED, FLOAT, ERASE = range(1, 5)
"""Moves: where an output pixel comes from. A code below FIRST_CHANGE is a move."""
FIRST_CHANGE = 16
BLEND, POSTERIZE, SOLARIZE, INVERT, CONTRAST, AUTOCONTRAST, EQUALIZE, SATURATION, HUE, GRAY = range(16, 26)
"""Changes of a pixel's value."""
CONSTANT, EDGE, REFLECT, SYMMETRIC = range(4)
"""What a shift finds outside of the image."""
