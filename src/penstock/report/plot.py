"""A drawing as wide as the page: shapes stretch, text keeps its size.

Shapes are an SVG of 1000 by `height` units, stretched sideways; text is HTML placed in per cent. So a page is readable on a phone and on a
wide screen, without a script. On a narrow page, every second axis label is hidden.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from penstock.report.svg import attributes, number

WIDTH = 1000.0


def word(text: str, look: str, *, x: float | None = None, y: float | None = None, tip: str = "") -> str:
    """Place text at `x` of 1000 and `y` pixels."""
    places = [] if x is None else [f"left:{number(x / WIDTH * 100)}%"]
    places += [] if y is None else [f"top:{number(y)}px"]
    put = attributes(class_=look, style=";".join(places), **({"title": tip} if tip else {}))
    return f"<span{put}>{escape(text)}</span>"


def x_axis(ticks: Iterable[tuple[float, str]]) -> list[str]:
    """Place labels under the drawing; x is of 1000."""
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
