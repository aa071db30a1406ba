"""Charts as SVG shapes: bars and lines over time. A table with the same numbers accompanies each chart.

Pure: takes numbers, returns shapes. A chart is stretched to its container, so shapes contain no text; the scale and the
ends of the time axis are written next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

#: The height of a chart, and the width of a period, in units of its viewBox.
HEIGHT, STEP = 100, 10
#: The width of the bar of a period.
BAR = 8
Number = float | None


@dataclass(frozen=True)
class Series:
    """Numbers over time, one for each period. `style` selects the colour: a class `series-…` of charts.css."""

    name: str
    style: str
    values: Sequence[Number]


@dataclass(frozen=True)
class ChartBar:
    x: float
    y: float
    width: float
    height: float
    style: str


@dataclass(frozen=True)
class Hover:
    """The area of a period, with its numbers as a tooltip."""

    x: float
    width: float
    text: str


@dataclass(frozen=True)
class ChartRow:
    """A row of the table behind a chart."""

    at: datetime
    cells: Sequence[str]


@dataclass(frozen=True)
class Chart:
    """A chart and the table behind it."""

    id: str
    title: str
    #: The chart in one sentence, for screen readers.
    description: str
    #: The largest number of the scale, as text.
    top: str
    series: Sequence[Series]
    rows: Sequence[ChartRow]
    bars: Sequence[ChartBar] = ()
    #: (style, the `d` of a path) of each line.
    lines: Sequence[tuple[str, str]] = ()
    hovers: Sequence[Hover] = ()
    width: float = 0
    height: float = HEIGHT
    is_empty: bool = False

    @property
    def begin(self) -> datetime:
        return self.rows[0].at

    @property
    def end(self) -> datetime:
        return self.rows[-1].at


@dataclass(frozen=True)
class Axes:
    """The axes of a chart: ID, title, starts of the periods, and the format of numbers."""

    id: str
    title: str
    periods: Sequence[datetime]
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
                bars.append(ChartBar(index * STEP + (STEP - BAR) / 2, round(y, 2), BAR, round(height, 2), line.style))
    sums = ", ".join(f"{line.name} {axes.show(sum(value or 0 for value in line.values))}" for line in series)
    return _chart(axes, series, most, f"{sums} in all", bars=bars)


def lines(axes: Axes, series: Sequence[Series]) -> Chart:
    """Return a chart with a line for each series. Periods without a number interrupt it."""
    most = max((value or 0 for line in series for value in line.values), default=0)
    paths = [(line.style, _path(line.values, most)) for line in series] if most else []
    peaks = ", ".join(
        f"{line.name} up to {axes.show(max((v or 0 for v in line.values), default=0))}" for line in series
    )
    return _chart(axes, series, most, peaks, lines=paths)


def _chart(axes: Axes, series: Sequence[Series], most: float, description: str, **shapes: Any) -> Chart:
    rows = []
    hovers = []
    for index, at in enumerate(axes.periods):
        cells = ["–" if (value := line.values[index]) is None else axes.show(value) for line in series]
        numbers = ", ".join(f"{line.name} {cell}" for line, cell in zip(series, cells, strict=True))
        rows.append(ChartRow(at, cells))
        hovers.append(Hover(index * STEP, STEP, f"{at:%Y-%m-%d %H:%M} UTC: {numbers}"))
    return Chart(
        id=axes.id,
        title=axes.title,
        description=description,
        top=axes.show(most),
        series=series,
        rows=rows,
        hovers=hovers,
        width=STEP * len(axes.periods),
        is_empty=not most,
        **shapes,
    )


def _path(values: Sequence[Number], most: float) -> str:
    """Return the `d` of a path. A number without neighbours becomes a horizontal line with the width of a bar."""
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
