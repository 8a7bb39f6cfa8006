"""A drawing of layouts: each row group as the rectangle of its bounds over two columns. Plain SVG, and small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from colorsys import hsv_to_rgb
from html import escape

SIDE, GAP, TOP = 220, 24, 28
Box = tuple[tuple[float, float], tuple[float, float]]


def draw(layouts: Mapping[str, Sequence[Box]]) -> str:
    """One square for each layout, side by side, all to the same scale."""
    every = [box for boxes in layouts.values() for box in boxes]
    spans = [(min(box[axis][0] for box in every), max(box[axis][1] for box in every)) for axis in (0, 1)]
    width = len(layouts) * (SIDE + GAP) + GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {SIDE + TOP + GAP}" '
        f'font-family="sans-serif" font-size="14">'
    )
    parts = [head, f'<rect width="{width}" height="{SIDE + TOP + GAP}" fill="#fff"/>']
    for number, (name, boxes) in enumerate(layouts.items()):
        left = GAP + number * (SIDE + GAP)
        parts.append(f'<text x="{left}" y="{TOP - 9}" fill="#222">{escape(name)}</text>')
        parts.append(
            f'<g transform="translate({left} {TOP})" fill-opacity="0.35" stroke="#222" stroke-width="0.7">'
        )
        for index, ((x0, x1), (y0, y1)) in enumerate(boxes):
            x, y = _place(x0, spans[0]), SIDE - _place(y1, spans[1])
            wide, high = _place(x1, spans[0]) - x, _place(y1, spans[1]) - _place(y0, spans[1])
            colour = "#" + "".join(
                f"{round(255 * part):02x}" for part in hsv_to_rgb(0.83 * index / len(boxes), 0.7, 0.9)
            )
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(wide, 0.5):.1f}" height="{max(high, 0.5):.1f}" '
                f'fill="{colour}"/>'
            )
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def _place(value: float, span: tuple[float, float]) -> float:
    return SIDE * (value - span[0]) / ((span[1] - span[0]) or 1)
