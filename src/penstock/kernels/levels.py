"""The kernel that looks levels up in a table."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def look_up(
    pixels,
    out,
    table,
    area,
    width,
    from_sample,
    from_channel,
    from_pixel,
    per_sample,
    per_channel,
    per_row,
    per_column,
    channels: tl.constexpr,
    block: tl.constexpr,
):
    """Levels of pixels, rows without gaps, become whatever the table holds, by the strides of `out`."""
    sample = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < area
    place = sample * per_sample + (at // width) * per_row + (at % width) * per_column
    for channel in tl.static_range(channels):
        level = tl.load(
            pixels + sample * from_sample + channel * from_channel + at * from_pixel, mask=inside, other=0
        )
        value = tl.load(table + channel * 256 + level.to(tl.int32), mask=inside)
        tl.store(out + place + channel * per_channel, value, mask=inside)
