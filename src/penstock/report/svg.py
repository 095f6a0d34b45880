"""SVG elements for the charts. All text is escaped here; colours are classes, so the page's style sets them for light and dark.

A `plot` is as wide as the page: its shapes are an SVG of 1000 by `height` units, stretched sideways; its text is HTML placed in per cent and keeps
its size. So a page is readable on a phone and on a wide screen, without a script. On a narrow page, every second axis label is hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

WIDTH = 1000.0
"""Units of a plot."""


def number(value: float) -> str:
    """Format with at most two decimals: a hundredth of a pixel, and a small file."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def attributes(**values: str | float) -> str:
    words = []
    for name, value in values.items():
        text = value if isinstance(value, str) else number(value)
        words.append(f' {name.rstrip("_").replace("_", "-")}="{escape(text)}"')
    return "".join(words)


def rect(x: float, y: float, w: float, h: float, look: str, *, tip: str = "", **more: str | float) -> str:
    put = attributes(class_=look, x=x, y=y, width=max(w, 0.0), height=max(h, 0.0), **more)
    return f"<rect{put}><title>{escape(tip)}</title></rect>" if tip else f"<rect{put}/>"


def line(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
    return f"<line{attributes(class_=look, x1=x1, y1=y1, x2=x2, y2=y2)}/>"


def path(points: Iterable[tuple[float, float]], look: str, *, closed: bool = False) -> str:
    drawn = "L".join(f"{number(x)} {number(y)}" for x, y in points)
    return f'<path{attributes(class_=look)} d="M{drawn}{"Z" if closed else ""}"/>'


def text(x: float, y: float, words: str, look: str = "label", *, anchor: str = "start") -> str:
    return f"<text{attributes(class_=look, x=x, y=y, text_anchor=anchor)}>{escape(words)}</text>"


def picture(width: float, height: float, parts: Iterable[str], *, says: str) -> str:
    """Return an SVG that scales with the page; `says` is for screen readers."""
    head = attributes(viewBox=f"0 0 {number(width)} {number(height)}", role="img", aria_label=says)
    return f'<svg xmlns="http://www.w3.org/2000/svg"{head}>{"".join(parts)}</svg>'


def word(text: str, look: str, *, x: float | None = None, y: float | None = None, tip: str = "") -> str:
    """Place text of a plot at `x` of 1000 and `y` pixels."""
    places = [] if x is None else [f"left:{number(x / WIDTH * 100)}%"]
    places += [] if y is None else [f"top:{number(y)}px"]
    put = attributes(class_=look, style=";".join(places), **({"title": tip} if tip else {}))
    return f"<span{put}>{escape(text)}</span>"


def x_axis(ticks: Iterable[tuple[float, str]]) -> list[str]:
    """Place labels under a plot; x is of 1000."""
    parts = []
    for at, (x, text) in enumerate(ticks):
        edge = " first" if x < 15 else " last" if x > WIDTH - 25 else ""
        parts.append(word(text, f"x{edge}{' spare' if at % 2 else ''}", x=x))
    return parts


def plot(height: float, shapes: Iterable[str], words: Iterable[str], *, says: str, left: str = "axis") -> str:
    """Return the drawing with its text. `says`: for screen readers; `left`: what stands left of it, an axis or names."""
    box = f"0 0 {number(WIDTH)} {number(height)}"
    head = attributes(viewBox=box, preserveAspectRatio="none", role="img", aria_label=says)
    return (
        f'<div class="plot {left}" style="height:{number(height)}px">'
        f'<svg xmlns="http://www.w3.org/2000/svg"{head}>{"".join(shapes)}</svg>{"".join(words)}</div>'
    )


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return about `about` round numbers from `low` to `high`."""
    if high <= low:
        return [low]
    raw = (high - low) / max(1, about)
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(scale * factor for factor in (1, 2, 5, 10) if scale * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def in_time(seconds: float) -> str:
    """Format a duration: 480 µs, 12.5 ms, 1.25 s, 3 min."""
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{significant(seconds * 1e3)} ms"
    if seconds < 99.95:
        return f"{significant(seconds)} s"
    return f"{seconds / 60:.1f} min"


def significant(value: float) -> str:
    """Format with three digits."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return number(float(f"{value:.{decimals}f}"))


def in_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1023.5:
            return f"{significant(count)} {unit}"
        count /= 1024
    return f"{significant(count)} TiB"


def thousands(count: float) -> str:
    """Format as 12 345, with non-breaking spaces."""
    return f"{count:,.0f}".replace(",", "\u202f")
