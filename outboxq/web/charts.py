"""The dashboard's charts: their time ranges, and the numbers and words that the templates draw as SVG.

A plot is `WIDTH` by `HEIGHT` units, and is stretched to the width of the page. The labels are outside the plot and are
not stretched.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ..model.schedules import TickRun
from ..model.wording import grouped, plural, span
from ..store import Trends
from .request import PageRequest

_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
NOTHING = (
    "Nothing was recorded in this period. Workers write statistics every 10 seconds while they are running tasks, and samples about "
    "every 15 seconds."
)
"""The text that is shown in place of a chart without any values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """A time range that ends now."""

    words: str
    steps: int
    step: timedelta
    tick: timedelta
    """The time between two labels."""


RANGES: Final = {
    "1h": Range(words="1 hour", steps=60, step=_MINUTE, tick=15 * _MINUTE),
    "6h": Range(words="6 hours", steps=72, step=5 * _MINUTE, tick=_HOUR),
    "24h": Range(words="24 hours", steps=96, step=15 * _MINUTE, tick=4 * _HOUR),
    "7d": Range(words="7 days", steps=84, step=2 * _HOUR, tick=24 * _HOUR),
}
"""The ranges, keyed by the value of `range=` in the URL. The first range is the default."""


Column = Sequence[float | None]
"""One value for each step of the chart. None stands for an unknown value."""
Words = Callable[[float], str]
"""A function that returns a value in words."""


class Series(NamedTuple):
    """A series with one value for each step of the chart."""

    name: str
    """The word in the legend, which is also the name of the color in the style sheet: completed, p95, …"""
    values: Column
    """The values. None stands for an unknown value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """The steps of a chart, all of the same length."""

    since: datetime
    step: timedelta
    steps: int
    tick: timedelta
    """The time between two labels."""

    @property
    def until(self) -> datetime:
        return self.since + self.steps * self.step


class PlotKind(StrEnum):
    """The ways in which the numbers in a plot are drawn."""

    COUNTS = "counts"
    """Stacked bars."""
    SAMPLES = "samples"
    """Lines. Steps without a sample are shown as missing."""
    SPANS = "spans"
    """Lines of values in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """The numbers in a chart, before it is drawn. Equal plots are drawn as equal charts."""

    kind: PlotKind
    title: str
    axis: Axis
    series: tuple[Series, ...]


class Tick(NamedTuple):
    """An axis label."""

    at: float
    """The position: for a value, the number of units from the top; for a time, the percentage from the left."""
    words: str
    anchor: str = "middle"
    """SVG's `text-anchor`."""


class Step(NamedTuple):
    """One step in a chart: its position, and the text that is shown when the pointer is over it."""

    x: float
    width: float
    title: str


class Shape(NamedTuple):
    """A line, or all bars of one color, as an SVG path. A line has a gap wherever a value is unknown."""

    kind: str
    path: str


class Legend(NamedTuple):
    """An entry in the legend: the name of a series, and its most important number."""

    name: str
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A chart, ready to be drawn."""

    title: str
    label: str
    """A sentence that describes the chart to people who cannot see it."""
    values: Sequence[Tick]
    times: Sequence[Tick]
    steps: Sequence[Step]
    lines: Sequence[Shape] = ()
    points: Sequence[Shape] = ()
    """The single values between two gaps, which a line of the usual width would not show."""
    bars: Sequence[Shape] = ()
    legend: Sequence[Legend]
    rows: Sequence[tuple[str, Sequence[str]]]
    """The numbers as a table. Each step with values has a row, which contains the step's beginning in UTC and the
    step's values in the order of `legend`.
    """
    missing: Sequence[Step]
    """The steps without a sample, in a chart of samples."""
    notes: Sequence[str] = ()
    """Sentences about the peaks above the axis, and about missing samples."""
    is_empty: bool
    """True if there are no known values, or all values of a stacked chart are 0."""


def trends_of(
    request: PageRequest, page: str, now: datetime, *, held_keys: int | None = None, **queue: str
) -> tuple[Trends, dict[str, Any]]:
    """Return the trends for the range in the URL, and the values that a page's template needs to show their charts.

    An unknown range is replaced by the first one. `queue` contains the page's parameter `name` if the page shows one
    queue.
    """
    here = request.query.get("range", "")
    here = here if here in RANGES else next(iter(RANGES))
    axis = axis_of(here, now)
    name = queue.get("name")
    trends = request.store.trends(since=axis.since, until=axis.until, step=axis.step, queue=name, held_keys=held_keys)
    ranges = [(one.words, request.url(page, **queue, range=name), None, name == here) for name, one in RANGES.items()]
    return trends, {"plots": plots_of(axis, trends), "nothing": NOTHING, "ranges": ranges}


def chart_of(plot: Plot) -> Chart:
    """Return the chart for a plot."""
    if plot.kind is PlotKind.COUNTS:
        return stacked(plot.title, plot.axis, plot.series)
    of_time, is_sampled = plot.kind is PlotKind.SPANS, plot.kind is PlotKind.SAMPLES
    return lines(plot.title, plot.axis, plot.series, of_time=of_time, is_sampled=is_sampled)


def axis_of(name: str, now: datetime) -> Axis:
    """Return the axis for a range. The steps begin at round times, and the last step contains `now`."""
    one = RANGES[name]
    last = _EPOCH + (now.astimezone(UTC) - _EPOCH) // one.step * one.step
    return Axis(since=last - (one.steps - 1) * one.step, step=one.step, steps=one.steps, tick=one.tick)


def plots_of(axis: Axis, trends: Trends) -> list[Plot]:
    """Return the plots of ended tasks, waiting tasks, waiting times and run times."""
    ended = _series(axis, [(one.at, one) for one in trends.counts], "completed", "retried", "failed")
    waiting = _series(axis, [(one.at, one) for one in trends.depths], "due", "delayed", "running")
    waits = _series(axis, [(one.at, one.wait) for one in trends.counts], "p50", "p95")
    runs = _series(axis, [(one.at, one.run) for one in trends.counts], "p50", "p95")
    return [
        Plot(
            kind=PlotKind.COUNTS, title=f"Throughput per {span(axis.step).removeprefix('1 ')}", axis=axis, series=ended
        ),
        Plot(kind=PlotKind.SAMPLES, title="Depth", axis=axis, series=waiting),
        Plot(kind=PlotKind.SPANS, title="Waiting time", axis=axis, series=waits),
        Plot(kind=PlotKind.SPANS, title="Running time", axis=axis, series=runs),
    ]


def _series(axis: Axis, points: Iterable[tuple[datetime, object]], *names: str) -> tuple[Series, ...]:
    """Return a series for each of these attributes, with one value for each step. The value is None if a step does not
    have a point. Spans are in seconds.
    """
    found: dict[str, list[float | None]] = {name: [None] * axis.steps for name in names}
    for at, point in points:
        index = (at - axis.since) // axis.step
        if point is not None and 0 <= index < axis.steps:
            for name, values in found.items():
                value = getattr(point, name)
                values[index] = value.total_seconds() if isinstance(value, timedelta) else value
    return tuple(Series(name=name, values=tuple(values)) for name, values in found.items())


WIDTH: Final = 1000
HEIGHT: Final = 150
_TOP, _ZERO = 8, HEIGHT - 8
"""The positions of the highest tick and of zero, measured from the top."""
_PEAK = 5
"""The axis is cut off if the highest value is more than this many times the 95th percentile."""
_MOST_INTERVALS = 4
"""The maximum number of intervals between the ticks on the value axis."""
_SPANS = (
    *(unit * factor for unit in (0.001, 0.01, 0.1) for factor in (1, 2, 5)),
    *(1, 2, 5, 10, 15, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3_600 * hours for hours in (1, 2, 3, 6, 12, 24)),
)
"""The round spans of time, in seconds."""
_NUMBERS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
_TIMES = ((" d", 86_400.0), (" h", 3_600.0), (" min", 60.0), (" s", 1.0), (" ms", 0.001))


def stacked(title: str, axis: Axis, series: Sequence[Series]) -> Chart:
    """Return a chart of counts, which are stacked from the bottom in the order of `series`."""
    columns = [[_known(value) or 0.0 for value in one.values] for one in series]
    values = _value_ticks(max(map(sum, zip(*columns, strict=True)), default=0.0), _whole)
    scale = _scale(values)
    bars, bases = [], [0.0] * axis.steps
    for one, column in zip(series, columns, strict=True):
        tops = [base + value for base, value in zip(bases, column, strict=True)]
        bars.append(Shape(kind=one.name, path=_bars([*map(scale, bases)], [*map(scale, tops)])))
        bases = tops
    totals = [_number(sum(column)) for column in columns]
    summary = ", ".join(f"{total} {one.name}" for one, total in zip(series, totals, strict=True))
    shown = [any(values) for values in zip(*columns, strict=True)]
    drawn: dict[str, Any] = {"values": _labelled(values, scale, _NUMBERS), "bars": bars}
    return _chart(title, axis, series, totals, summary, columns=columns, shown=shown, words=_number, **drawn)


def lines(
    title: str, axis: Axis, series: Sequence[Series], *, of_time: bool = False, is_sampled: bool = False
) -> Chart:
    """Return a line chart, with gaps wherever values are unknown. If `of_time` is True, the values are in seconds. If
    `is_sampled` is True, steps without values are shown as missing.

    To keep a few high peaks from flattening the rest, the axis is cut off, and a note gives the time and the value of
    each peak.
    """
    words: Words = span if of_time else _number
    columns = [[_known(value) for value in one.values] for one in series]
    top = _top([value for column in columns for value in column if value is not None])
    values = _value_ticks(top, _round_span if of_time else _whole)
    scale = _scale(values)
    shown = [any(value is not None for value in values) for values in zip(*columns, strict=True)]
    paths = [Shape(kind=one.name, path=_path(c, scale)) for one, c in zip(series, columns, strict=True)]
    legend, summary = [], []
    for one, column in zip(series, columns, strict=True):
        known = [value for value in column if value is not None]
        last = words(known[-1]) if known else "–"
        # The last step may have just begun.
        is_recent = not known or any(value is not None for value in column[-2:])
        legend.append(last if is_recent else f"– (last {last})")
        summary.append(f"{one.name} {f'last {last}, at most {words(max(known))}' if known else 'unknown'}")
    notes = [*_peaks(axis, series, columns, values[-1], words), *(_gaps(axis, shown) if is_sampled else ())]
    points = [Shape(kind=one.kind, path=path) for one in paths if (path := _points(one.path))]
    ticks, text = _labelled(values, scale, _TIMES if of_time else _NUMBERS), "; ".join(summary)
    drawn: dict[str, Any] = {"values": ticks, "lines": paths, "points": points, "notes": notes}
    return _chart(
        title, axis, series, legend, text, columns=columns, shown=shown, words=words, is_sampled=is_sampled, **drawn
    )


def sparkline(values: Column) -> tuple[str, str] | None:
    """Return the paths of a small chart of 100 by 20 units: the line, and the area below it; None if fewer than two
    values are known.
    """
    points = [(index, value) for index, value in enumerate(map(_known, values)) if value is not None]
    if len(points) < 2:
        return None
    highest = max(1.0, *(value for _, value in points))
    first, last = points[0][0], points[-1][0]
    places = [
        (_rounded((index - first) * 100 / (last - first)), _rounded(19 - 18 * (value / highest)))
        for index, value in points
    ]
    line = "M" + "L".join(f"{x:g} {y:g}" for x, y in places)
    return line, f"{line}L100 20L0 20Z"


class TickBar(NamedTuple):
    """A schedule's tick as a bar in a small chart of 100 by 20 units, and the text that is shown over it."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TickBars:
    """The last ticks of a schedule, one bar for each tick. The height of a bar shows how long the tick's task ran, and
    its color shows the task's outcome.
    """

    bars: Sequence[TickBar]
    label: str
    """A sentence that describes the chart to people who cannot see it."""


def tick_bars(runs: Sequence[TickRun]) -> TickBars | None:
    """Return the bars for these ticks, oldest first; None if there are none. A bar is short if the tick's task has not
    run.
    """
    if not runs:
        return None
    spans = [0.0 if one.ran is None else one.ran.total_seconds() for one in runs]
    longest, width = max(spans) or 1.0, min(100 / len(runs), 10.0)
    bars, outcomes = [], Counter[str]()
    for place, (one, seconds) in enumerate(zip(runs, spans, strict=True)):
        kind = "pruned" if one.status is None else one.status.lower()
        outcomes[kind] += 1
        height = _rounded(3 + 16 * seconds / longest)
        title = f"{one.tick:%Y-%m-%d %H:%M:%S} UTC: {kind}{'' if one.ran is None else f' after {span(one.ran)}'}"
        x = _rounded(100 - (len(runs) - place) * width)
        bars.append(TickBar(x=x, y=20 - height, width=_rounded(width * 0.8), height=height, kind=kind, title=title))
    ran = [one.ran for one in runs if one.ran is not None]
    counts = ", ".join(f"{number} {kind}" for kind, number in outcomes.most_common())
    longest_words = f"; the longest ran for {span(max(ran))}, the last one for {span(ran[-1])}" if ran else ""
    return TickBars(bars=bars, label=f"The last {len(runs)} {plural(len(runs), 'tick')}: {counts}{longest_words}.")


def time_ticks(axis: Axis) -> tuple[Tick, ...]:
    """Return the labels on the time axis: round times, and the date at midnight."""
    whole = axis.until - axis.since
    moment = _EPOCH + math.ceil((axis.since - _EPOCH) / axis.tick) * axis.tick
    found = []
    while moment <= axis.until:
        share = (moment - axis.since) / whole * 100
        anchor = "start" if share < 4 else "end" if share > 96 else "middle"
        is_midnight = moment.hour == moment.minute == 0
        words = f"{moment.day} {moment:%b}" if is_midnight else f"{moment:%H:%M}"
        found.append(Tick(at=_rounded(share), words=words, anchor=anchor))
        moment += axis.tick
    return tuple(found)


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def _value_ticks(highest: float, round_up: Callable[[float], float]) -> list[float]:
    """Return the tick values, from 0 to the first tick that is not below the highest value."""
    between = round_up(highest / _MOST_INTERVALS)
    return [between * index for index in range(max(1, math.ceil(highest / between)) + 1)]


def _whole(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, … that is at least `least`."""
    if least <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= least), 10 * power)


def _round_span(least: float) -> float:
    """Return the shortest round span, in seconds, that is at least `least` seconds long."""
    return next((float(one) for one in _SPANS if one >= least), None) or 86_400 * _whole(least / 86_400)


def _top(values: Sequence[float]) -> float:
    """Return the value that the axis must reach: the highest value, or the 95th percentile if the highest value is more
    than `_PEAK` times the 95th percentile.
    """
    if not values:
        return 0.0
    ordered = sorted(values)
    usual = ordered[math.ceil(0.95 * len(ordered)) - 1]
    return usual if 0 < usual * _PEAK < ordered[-1] else ordered[-1]


def _peaks(axis: Axis, series: Sequence[Series], columns: Sequence[Column], top: float, words: Words) -> list[str]:
    """Return a sentence for each series that has values above the axis, naming the highest of these values."""
    found = []
    for one, column in zip(series, columns, strict=True):
        above = [(value, index) for index, value in enumerate(column) if value is not None and value > top]
        if above:
            value, index = max(above)
            at = axis.since + index * axis.step
            more = f", and {len(above) - 1} more" if len(above) > 1 else ""
            found.append(f"Above the axis: {one.name} {words(value)} at {at:%d %b %H:%M}{more}.")
    return found


def _gaps(axis: Axis, shown: Sequence[bool]) -> list[str]:
    """Return a list with a sentence about the samples that are missing after the first sample; empty if none are
    missing.
    """
    if True not in shown:
        return []
    first = shown.index(True)
    number = sum(not is_shown for is_shown in shown[first:-1])  # the last step may have just begun
    return [f"Samples are missing for {span(number * axis.step)}, because no worker took any."] if number else []


def _scale(values: Sequence[float]) -> Callable[[float], float]:
    return lambda value: _rounded(_ZERO - (_ZERO - _TOP) * min(value / values[-1], 1.0))


def _labelled(
    values: Sequence[float], scale: Callable[[float], float], units: Sequence[tuple[str, float]]
) -> tuple[Tick, ...]:
    """Return the labels on the value axis, each in the largest suitable unit: 0, 500, 2k, 1.5M, 50 ms, 90 min."""
    found = []
    for value in values:
        unit, size = next((one for one in units if value >= one[1]), ("", 1.0))
        found.append(Tick(at=scale(value), words=f"{round(value / size, 2):g}{unit}"))
    return tuple(found)


_POINT = "h0.01"
"""The end of a path that is a single point."""


def _points(path: str) -> str:
    """Return the single points in a path."""
    return "".join(f"M{part}" for part in path.split("M") if part.endswith(_POINT))


def _path(column: Column, scale: Callable[[float], float]) -> str:
    """Return the path through the middles of the steps. A value between two gaps is drawn as a dot."""
    width = WIDTH / len(column)
    parts, is_open, alone = [], False, False
    for index, value in enumerate([*column, None]):
        if value is None:
            if alone:
                parts.append(_POINT)
            is_open = alone = False
        else:
            parts.append(f"{'L' if is_open else 'M'}{_rounded((index + 0.5) * width):g} {scale(value):g}")
            is_open, alone = True, not is_open
    return "".join(parts)


def _bars(bottoms: Sequence[float], tops: Sequence[float]) -> str:
    """Return the path around the bars of one color. A tenth of the step is left empty on each side."""
    width, parts = WIDTH / len(tops), []
    for index, (bottom, top) in enumerate(zip(bottoms, tops, strict=True)):
        if bottom > top:
            left, right = f"{_rounded((index + 0.1) * width):g}", f"{_rounded(width * 0.8):g}"
            parts.append(f"M{left} {top:g}h{right}v{_rounded(bottom - top):g}H{left}z")
    return "".join(parts)


def _chart(
    title: str,
    axis: Axis,
    series: Sequence[Series],
    legend: Sequence[str],
    summary: str,
    *,
    columns: Sequence[Column],
    shown: Sequence[bool],
    words: Words,
    is_sampled: bool = False,
    **drawn: Any,
) -> Chart:
    """Return the chart. Its table has a row for each step for which `shown` is True, newest first. `drawn` contains the
    labels of the value axis, the shapes and the notes.
    """
    steps, rows = [], []
    for place, values, is_shown in zip(_places(axis), zip(*columns, strict=True), shown, strict=True):
        written = [None if value is None else words(value) for value in values]
        known = ", ".join(f"{one.name} {text}" for one, text in zip(series, written, strict=True) if text is not None)
        name, until, x, width = place
        steps.append(Step(x=x, width=width, title=f"{name} to {until}: {known or 'unknown'}"))
        if is_shown:
            rows.append((name, ["–" if text is None else text for text in written]))
    return Chart(
        title=title,
        label=f"{title} from {axis.since:%Y-%m-%d %H:%M} to {axis.until:%Y-%m-%d %H:%M} UTC: {summary}.",
        times=time_ticks(axis),
        steps=steps,
        legend=[Legend(name=one.name, words=text) for one, text in zip(series, legend, strict=True)],
        rows=rows[::-1],
        missing=[step for step, is_shown in zip(steps, shown, strict=True) if is_sampled and not is_shown],
        is_empty=not rows,
        **drawn,
    )


@lru_cache(maxsize=2 * len(RANGES))
def _places(axis: Axis) -> list[tuple[str, str, float, float]]:
    """Return the beginning, the end, the position and the width of each step. The result is cached, because all charts
    on a page have the same steps, and the next page often needs these steps again.
    """
    # In a chart of more than one day, each step names its day.
    form = "{0:%H:%M}" if axis.until - axis.since <= timedelta(days=1) else "{0.day} {0:%b %H:%M}"
    begins, width = [axis.since + index * axis.step for index in range(axis.steps)], WIDTH / axis.steps
    return [
        (form.format(begin), f"{begin + axis.step:%H:%M}", _rounded(index * width), _rounded(width))
        for index, begin in enumerate(begins)
    ]


def _number(value: float) -> str:
    return grouped(round(value))


def _rounded(value: float) -> float:
    return round(value, 2)
