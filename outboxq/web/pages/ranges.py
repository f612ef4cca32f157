"""The range of time that charts show, chosen in the URL, and the charts of a queue or of all queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ...store import Percentiles, Trends
from ..charts import Axis, Chart, Series, lines, stacked
from ..request import PageRequest

_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)
NOTHING = (
    "Nothing was recorded in this time. Workers write statistics every 10 seconds while they run tasks, and samples about "
    "every 15 seconds."
)
"""The words in the place of a chart without any value."""
_ZERO = datetime(2000, 1, 1, tzinfo=UTC)


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
    last = _ZERO + (now.astimezone(UTC) - _ZERO) // one.step * one.step
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
