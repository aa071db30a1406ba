"""Draws curves as SVG. Axes, text and lines have colours that are legible on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 46, 50
#: Curves rise at the right or fall at the left.
KEY = LEFT + 190
#: Of 3:1 and more against white and against the dark page: text and lines of the theme "slate" alike.
INK, GRID = "#7a7f87", "#8a8f9855"
COLOURS = ("#3b82d6", "#d9622b", "#2f9e6e", "#a25bc8")
DASHES = ("", "7 4", "2 4", "10 4 2 4")


@dataclass(frozen=True)
class Curve:
    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """Curves over a logarithmic axis. `is_log` makes the vertical axis logarithmic too."""

    title: str
    across: str
    up: str
    curves: Sequence[Curve]
    is_log: bool = False
    #: Horizontal lines with a label, for limits.
    limits: Sequence[tuple[float, str]] = field(default=())


def draw(chart: Chart) -> str:
    """Return the chart as an SVG document."""
    xs = [x for curve in chart.curves for x, _ in curve.points]
    ys = [y for curve in chart.curves for _, y in curve.points] + [y for y, _ in chart.limits]
    across = _log_scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    low, high = _whole_decades(min(ys), max(ys)) if chart.is_log else (0.0, _round_up(max(ys)))
    ends = (HEIGHT - BOTTOM, TOP)
    up = _log_scale(low, high, *ends) if chart.is_log else _linear_scale(low, high, *ends)
    ticks = _decades(low, high) if chart.is_log else [high * part / 4 for part in range(5)]
    parts = [_text(LEFT, 18, chart.title, "start", weight="600")]
    parts += [_grid_line(up(tick)) + _text(LEFT - 8, up(tick) + 4, _number(tick), "end") for tick in ticks]
    parts += [_text(across(x), HEIGHT - BOTTOM + 18, _number(x), "middle") for x in _decades(min(xs), max(xs))]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, chart.across, "middle"))
    parts.append(_text(LEFT, 36, chart.up, "start"))
    for limit, label in chart.limits:
        parts.append(_limit_line(up(limit)) + _text(LEFT + 8, up(limit) - 5, label, "start"))
    for number, curve in enumerate(chart.curves):
        parts.append(_curve(curve, number, across, up))
    names = "; ".join(curve.name for curve in chart.curves)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' font-family="system-ui, sans-serif" font-size="12" fill="{INK}">\n'
        f"<title>{escape(chart.title)}: {escape(names)}</title>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _curve(curve: Curve, number: int, across: Callable[[float], float], up: Callable[[float], float]) -> str:
    colour, dash = COLOURS[number], DASHES[number]
    places = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in curve.points)
    line = f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dash}"/>'
    dots = "".join(f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}"/>' for x, y in curve.points)
    top = TOP + 16 + number * 18
    key = (
        f'<line x1="{KEY}" x2="{KEY + 30}" y1="{top}" y2="{top}" stroke="{colour}" stroke-width="2.5"'
        f' stroke-dasharray="{dash}"/>'
    )
    return line + dots + key + _text(KEY + 38, top + 4, curve.name, "start")


def _text(x: float, y: float, text: str, anchor: str, weight: str = "400") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'


def _grid_line(y: float) -> str:
    return f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>'


def _limit_line(y: float) -> str:
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{INK}" stroke-width="1.5"'
        ' stroke-dasharray="4 4"/>'
    )


def _linear_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _log_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    linear = _linear_scale(math.log10(low), math.log10(high), start, end)
    return lambda value: linear(math.log10(value))


def _decades(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [float(10**exponent) for exponent in range(first, last + 1)]


def _whole_decades(low: float, high: float) -> tuple[float, float]:
    return 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))


def _round_up(value: float) -> float:
    unit = 10 ** math.floor(math.log10(value))
    return next(unit * step for step in (1, 2, 4, 6, 8, 10) if unit * step >= value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:g}"
