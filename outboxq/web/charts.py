"""The geometry of charts: what the templates draw as SVG, in numbers and words.

A plot is `WIDTH` by `HEIGHT` units. The page stretches it to its own width, but not its texts, which stand outside the plot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ..model.wording import span
from ..store import Percentiles, Trends
from .request import PageRequest

_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)
NOTHING = (
    "Nothing was recorded in this time. Workers write statistics every 10 seconds while they run tasks, and samples about "
    "every 15 seconds."
)
"""The words in the place of a chart without any value."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """A range of time up to now, its steps, and how far its labels are apart."""

    words: str
    steps: int
    step: timedelta
    tick: timedelta


RANGES: Final = {
    "1h": Range(words="1 hour", steps=60, step=_MINUTE, tick=15 * _MINUTE),
    "6h": Range(words="6 hours", steps=72, step=5 * _MINUTE, tick=_HOUR),
    "24h": Range(words="24 hours", steps=96, step=15 * _MINUTE, tick=4 * _HOUR),
    "7d": Range(words="7 days", steps=84, step=2 * _HOUR, tick=24 * _HOUR),
}
"""The ranges by their value of `range=` in the URL; the first is what a page shows without it."""


def chosen(request: PageRequest) -> str:
    """Return the range that the URL names; for one that is not known the first."""
    name = request.query.get("range", "")
    return name if name in RANGES else next(iter(RANGES))


def axis_of(name: str, now: datetime) -> Axis:
    """Return the axis of a range. Its last step is the one that now is in; steps begin at round times."""
    one = RANGES[name]
    last = _EPOCH + (now.astimezone(UTC) - _EPOCH) // one.step * one.step
    return Axis(since=last - (one.steps - 1) * one.step, step=one.step, steps=one.steps, tick=one.tick)


def tabs(request: PageRequest, page: str, **values: str) -> list[tuple[str, str, None, bool]]:
    """Return the tabs of a page from which a range is chosen."""
    here = chosen(request)
    return [(one.words, request.url(page, **values, range=name), None, name == here) for name, one in RANGES.items()]


def charts_of(axis: Axis, trends: Trends) -> list[Chart]:
    """Return the charts of what ended, of what waited, and of how long both took."""
    metrics, depths = trends.counts, trends.depths
    ended = [
        Series(name="completed", kind="completed", values=_at(axis, [(one.at, one.completed) for one in metrics])),
        Series(name="retried", kind="retried", values=_at(axis, [(one.at, one.retried) for one in metrics])),
        Series(name="failed", kind="failed", values=_at(axis, [(one.at, one.failed) for one in metrics])),
    ]
    waiting = [
        Series(name=name, kind=name, values=_at(axis, [(one.at, getattr(one, name)) for one in depths]))
        for name in ("ready", "delayed", "running")
    ]
    return [
        stacked("Throughput", axis, ended),
        lines("Depth", axis, waiting),
        lines("Wait before the start", axis, _percentiles(axis, [(one.at, one.wait) for one in metrics]), of_time=True),
        lines("Run", axis, _percentiles(axis, [(one.at, one.run) for one in metrics]), of_time=True),
    ]


def _percentiles(axis: Axis, points: Sequence[tuple[datetime, Percentiles | None]]) -> list[Series]:
    return [
        Series(
            name=name,
            kind=name,
            values=_at(axis, [(at, None if one is None else getattr(one, name).total_seconds()) for at, one in points]),
        )
        for name in ("p50", "p95")
    ]


def _at(axis: Axis, points: Sequence[tuple[datetime, float | None]]) -> list[float | None]:
    """Return one value for each step of the axis; None where there is no point."""
    found: list[float | None] = [None] * axis.steps
    for at, value in points:
        index = (at - axis.since) // axis.step
        if 0 <= index < axis.steps:
            found[index] = value
    return found


WIDTH: Final = 1000
HEIGHT: Final = 150
_TOP, _ZERO = 8, HEIGHT - 8
"""The heights of the highest tick and of zero, from the top."""
_MOST_INTERVALS = 4
"""Maximum number of intervals between the ticks of the axis of values."""
_SPANS = (
    *(unit * factor for unit in (0.001, 0.01, 0.1) for factor in (1, 2, 5)),
    *(1, 2, 5, 10, 15, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3_600 * hours for hours in (1, 2, 3, 6, 12, 24)),
)
"""Round spans of time in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """The values of one thing, one for each step of the chart."""

    name: str
    kind: str
    """The word for its colour in the style sheet: completed, p95, …"""
    values: Sequence[float | None]
    """None: the value is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """The steps of a chart: all equally long, from the first one's begin to the last one's end."""

    since: datetime
    step: timedelta
    steps: int
    tick: timedelta
    """The time between two labels."""

    @property
    def until(self) -> datetime:
        return self.since + self.steps * self.step

    @property
    def moments(self) -> list[datetime]:
        """The begins of the steps."""
        return [self.since + number * self.step for number in range(self.steps)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """A label at an axis."""

    at: float
    """The place: units from the top for a value, percent from the left for a time."""
    words: str
    anchor: str = "middle"
    """SVG's `text-anchor`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One part of a stacked bar."""

    kind: str
    y: float
    height: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of a chart: the place where it is, its bars, and its words."""

    x: float
    width: float
    title: str
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line, or all bars of one colour, as the path that SVG draws. A line has a gap where a value is not known."""

    kind: str
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Legend:
    """The words for one colour: a name, and the number that matters."""

    name: str
    kind: str
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A chart, ready to be drawn."""

    title: str
    label: str
    """The whole chart as a sentence, for those who do not see it."""
    values: tuple[Tick, ...]
    times: tuple[Tick, ...]
    steps: tuple[Step, ...]
    lines: tuple[Line, ...]
    bars: tuple[Line, ...]
    """The bars of `steps`, one path for each colour."""
    legend: tuple[Legend, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """The numbers as a table: the begin of each step that has any, in UTC, and its values in the order of `legend`."""
    is_empty: bool
    """True: no value is known, or all of a stacked chart are 0."""


def stacked(title: str, axis: Axis, series: Sequence[Series]) -> Chart:
    """Return a chart of counts, stacked in their order from the bottom."""
    columns = [[_known(value) or 0.0 for value in one.values] for one in series]
    values = _value_ticks(max(map(sum, zip(*columns, strict=True)), default=0.0), _whole)
    scale = _scale(values)
    width = WIDTH / axis.steps
    steps = []
    for index, moment in enumerate(axis.moments):
        bars, base = [], 0.0
        for one, column in zip(series, columns, strict=True):
            if column[index]:
                low, high = scale(base), scale(base + column[index])
                bars.append(Bar(kind=one.kind, y=high, height=_rounded(low - high)))
                base += column[index]
        title_of = _title(axis, moment, [(one.name, _number(c[index])) for one, c in zip(series, columns, strict=True)])
        steps.append(Step(x=_rounded(index * width), width=_rounded(width), title=title_of, bars=tuple(bars)))
    totals = [_number(sum(column)) for column in columns]
    summary = ", ".join(f"{total} {one.name}" for one, total in zip(series, totals, strict=True))
    return Chart(
        title=title,
        label=f"{title} from {_clock(axis.since)} to {_clock(axis.until)} UTC: {summary}.",
        values=_labelled(values, scale, _short_number),
        times=time_ticks(axis),
        steps=tuple(steps),
        lines=(),
        bars=tuple(Line(kind=one.kind, path=_bars(steps, one.kind)) for one in series),
        legend=tuple(
            Legend(name=one.name, kind=one.kind, words=total) for one, total in zip(series, totals, strict=True)
        ),
        rows=_rows(axis, columns, _number, leave_out_zeros=True),
        is_empty=not any(map(any, columns)),
    )


def lines(title: str, axis: Axis, series: Sequence[Series], *, of_time: bool = False) -> Chart:
    """Return a chart of lines, with gaps where values are not known. `of_time`: the values are seconds."""
    words: Callable[[float], str] = span if of_time else _number
    columns = [[_known(value) for value in one.values] for one in series]
    known = [value for column in columns for value in column if value is not None]
    values = _value_ticks(max(known, default=0.0), _round_span if of_time else _whole)
    scale = _scale(values)
    width = WIDTH / axis.steps
    steps = tuple(
        Step(
            x=_rounded(index * width),
            width=_rounded(width),
            title=_title(axis, moment, _values(series, columns, index, words)),
        )
        for index, moment in enumerate(axis.moments)
    )
    legend = []
    summary = []
    for one, column in zip(series, columns, strict=True):
        there = [value for value in column if value is not None]
        last = words(there[-1]) if there else "–"
        is_recent = not there or any(value is not None for value in column[-2:])  # the last step may have only begun
        legend.append(Legend(name=one.name, kind=one.kind, words=last if is_recent else f"– (last {last})"))
        summary.append(
            f"{one.name} {last} at the end, {words(max(there))} at most" if there else f"{one.name} not known"
        )
    return Chart(
        title=title,
        label=f"{title} from {_clock(axis.since)} to {_clock(axis.until)} UTC: {'; '.join(summary)}.",
        values=_labelled(values, scale, _short_span if of_time else _short_number),
        times=time_ticks(axis),
        steps=steps,
        bars=(),
        lines=tuple(Line(kind=one.kind, path=_path(c, width, scale)) for one, c in zip(series, columns, strict=True)),
        legend=tuple(legend),
        rows=_rows(axis, columns, words, leave_out_zeros=False),
        is_empty=not known,
    )


def sparkline(values: Sequence[float | None]) -> tuple[str, str] | None:
    """Return the paths of a small chart of 100 by 20 units: its line, and the area below. None: it has fewer than two values."""
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


def time_ticks(axis: Axis) -> tuple[Tick, ...]:
    """Return the labels of the times: at round ones, midnights as dates."""
    whole, zero = axis.until - axis.since, datetime(2000, 1, 1, tzinfo=UTC)
    moment = zero + math.ceil((axis.since - zero) / axis.tick) * axis.tick
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
    """Return the values of the ticks, from 0 to the first that is not below the highest value."""
    between = round_up(highest / _MOST_INTERVALS)
    return [between * index for index in range(max(1, math.ceil(highest / between)) + 1)]


def _whole(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, … that is not below a number."""
    if least <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= least), 10 * power)


def _round_span(least: float) -> float:
    """Return the smallest round span in seconds that is not below another."""
    return next((float(one) for one in _SPANS if one >= least), None) or 86_400 * _whole(least / 86_400)


def _scale(values: Sequence[float]) -> Callable[[float], float]:
    highest = values[-1]
    return lambda value: _rounded(_ZERO - (_ZERO - _TOP) * min(value / highest, 1.0))


def _labelled(
    values: Sequence[float], scale: Callable[[float], float], words: Callable[[float], str]
) -> tuple[Tick, ...]:
    return tuple(Tick(at=scale(value), words=words(value), anchor="end") for value in values)


def _path(column: Sequence[float | None], width: float, scale: Callable[[float], float]) -> str:
    """Return the path through the middles of the steps. A value between two gaps is a dot."""
    parts, is_open, alone = [], False, False
    for index, value in enumerate([*column, None]):
        if value is None:
            if alone:
                parts.append("h0.01")
            is_open = alone = False
        else:
            parts.append(f"{'L' if is_open else 'M'}{_rounded((index + 0.5) * width):g} {scale(value):g}")
            is_open, alone = True, not is_open
    return "".join(parts)


def _bars(steps: Sequence[Step], kind: str) -> str:
    """Return the path around the bars of one colour. They leave a tenth of a step free on either side."""
    return "".join(
        f"M{_rounded(step.x + step.width / 10):g} {bar.y:g}h{_rounded(step.width * 0.8):g}v{bar.height:g}H{_rounded(step.x + step.width / 10):g}z"
        for step in steps
        for bar in step.bars
        if bar.kind == kind
    )


def _values(
    series: Sequence[Series], columns: Sequence[Sequence[float | None]], index: int, words: Callable[[float], str]
) -> list[tuple[str, str]]:
    found = [(one.name, column[index]) for one, column in zip(series, columns, strict=True)]
    return [(name, words(value)) for name, value in found if value is not None]


def _title(axis: Axis, moment: datetime, values: Sequence[tuple[str, str]]) -> str:
    when = f"{_begin(axis, moment)} to {moment + axis.step:%H:%M}"
    return f"{when}: {', '.join(f'{name} {words}' for name, words in values) or 'not known'}"


def _rows(
    axis: Axis, columns: Sequence[Sequence[float | None]], words: Callable[[float], str], *, leave_out_zeros: bool
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the steps that have values, the newest first."""
    found = []
    for moment, values in zip(axis.moments, zip(*columns, strict=True), strict=True):
        if any(value if leave_out_zeros else value is not None for value in values):
            found.append((_begin(axis, moment), tuple("–" if value is None else words(value) for value in values)))
    return tuple(reversed(found))


def _begin(axis: Axis, moment: datetime) -> str:
    """Return the begin of a step as short as the chart allows: 14:05, and with the day in a chart of more than one."""
    is_of_a_day = axis.until - axis.since <= timedelta(days=1)
    return f"{moment:%H:%M}" if is_of_a_day else f"{moment.day} {moment:%b %H:%M}"


def _clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def _number(value: float) -> str:
    return f"{round(value):,}".replace(",", " ")


def _short_number(value: float) -> str:
    """Return a number for an axis: 500, 2k, 1.5M."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _short_span(value: float) -> str:
    """Return a span for an axis in one unit: 0, 50 ms, 1.5 s, 90 min."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if value >= size:
            return f"{round(value / size, 2):g} {unit}"
    return f"{value * 1000:g} ms" if value else "0"


def _rounded(value: float) -> float:
    return round(value, 2)
