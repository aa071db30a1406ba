"""Charts as SVG shapes: bars and lines over time, each with a table of the same numbers.

A chart is stretched to its container, so its shapes contain no text. The template writes the scale next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

#: The height of a chart, the width of a period, and the width of the bar of a period, in units of the viewBox.
HEIGHT, STEP, BAR = 100, 10, 8
#: A number of a period; None if the period has none.
Number = float | None


@dataclass(frozen=True)
class Series:
    """Numbers over time, one for each period."""

    name: str
    #: Selects the colour: the class `series-{style}` of charts.css.
    style: str
    values: Sequence[Number]


@dataclass(frozen=True)
class ChartBar:
    """A bar of the width BAR. `x` and `y` are its upper left corner."""

    x: float
    y: float
    height: float
    style: str


@dataclass(frozen=True)
class Chart:
    """A chart and its table."""

    id: str
    title: str
    #: The chart in one sentence, for screen readers.
    description: str
    #: The largest number of the scale, as text.
    top: str
    series: Sequence[Series]
    #: The start of each period, and its numbers as texts: the rows of the table.
    rows: Sequence[tuple[datetime, Sequence[str]]]
    #: The `x` of each period, and its numbers as a tooltip.
    tooltips: Sequence[tuple[int, str]]
    bars: Sequence[ChartBar] = ()
    #: The style of each line, and the `d` of its path.
    lines: Sequence[tuple[str, str]] = ()
    width: float = 0
    height: float = HEIGHT
    period_width: float = STEP
    bar_width: float = BAR
    is_empty: bool = False

    @property
    def begin(self) -> datetime:
        return self.rows[0][0]


@dataclass(frozen=True)
class Axes:
    """What a chart shows: the axes of its shapes."""

    id: str
    title: str
    #: The starts of the periods.
    periods: Sequence[datetime]
    #: Returns a number as text.
    show: Callable[[float], str]


def stacked(axes: Axes, series: Sequence[Series]) -> Chart:
    """Return a chart with a stacked bar for each period."""
    periods = axes.periods
    totals = [sum(line.values[index] or 0 for line in series) for index in range(len(periods))]
    most = max(totals, default=0)
    bars = []
    for index in range(len(periods)):
        y = float(HEIGHT)
        for line in series:
            height = HEIGHT * (line.values[index] or 0) / most if most else 0
            y -= height
            if height:
                bars.append(ChartBar(index * STEP + (STEP - BAR) / 2, round(y, 2), round(height, 2), line.style))
    sums = ", ".join(f"{line.name} {axes.show(sum(value or 0 for value in line.values))}" for line in series)
    return _chart(axes, series, most, f"{sums} in all", bars=bars)


def lines(axes: Axes, series: Sequence[Series]) -> Chart:
    """Return a chart with a line for each series. Periods without a number interrupt the line."""
    peaks = [max((value or 0 for value in line.values), default=0) for line in series]
    most = max(peaks, default=0)
    paths = [(line.style, _path(line.values, most)) for line in series] if most else []
    texts = [f"{line.name} up to {axes.show(peak)}" for line, peak in zip(series, peaks, strict=True)]
    return _chart(axes, series, most, ", ".join(texts), lines=paths)


def _chart(axes: Axes, series: Sequence[Series], most: float, description: str, **shapes: Any) -> Chart:
    """Return a chart with these shapes, and its table. `most` is the largest number of the scale."""
    rows, tooltips = [], []
    for index, at in enumerate(axes.periods):
        cells = ["–" if (value := line.values[index]) is None else axes.show(value) for line in series]
        numbers = ", ".join(f"{line.name} {cell}" for line, cell in zip(series, cells, strict=True))
        rows.append((at, cells))
        tooltips.append((index * STEP, f"{at:%Y-%m-%d %H:%M} UTC: {numbers}"))
    return Chart(
        id=axes.id,
        title=axes.title,
        description=description,
        top=axes.show(most),
        series=series,
        rows=rows,
        tooltips=tooltips,
        width=STEP * len(axes.periods),
        is_empty=not most,
        **shapes,
    )


def _path(values: Sequence[Number], most: float) -> str:
    """Return the `d` of an SVG path. A number without neighbours becomes a horizontal line as wide as a bar."""
    parts = []
    padded = [None, *values, None]
    for index, value in enumerate(values):
        if value is None:
            continue
        x, y = index * STEP + STEP / 2, round(HEIGHT * (1 - value / most), 2)
        begins, ends = padded[index] is None, padded[index + 2] is None
        if begins and ends:
            parts.append(f"M{x - BAR / 2} {y}L{x + BAR / 2} {y}")
        else:
            parts.append(f"{'M' if begins else 'L'}{x} {y}")
    return "".join(parts)
