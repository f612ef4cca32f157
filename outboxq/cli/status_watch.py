"""The live view of `outboxq status --watch` on a terminal: what needs attention first, then numbers, curves and workers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ..model.wording import brief, plain, plural, short

if TYPE_CHECKING:
    from ..store import LiveWorker, Statistics, Store
    from ..store.numbers.overview import Overview

Lines = tuple[Sequence[str], Sequence[Sequence[object]]]
"""Column names of a table, and its rows."""

_BARS: Final = "▁▂▃▄▅▆▇█"
_UNITS: Final = ("", "k", "M", "G")
_STEPS: Final = 24
"""Number of bars of a curve."""
_CURVES: Final = 6
"""Number of queues with a curve of their own: each is one statement."""
_PROBLEMS: Final = 5
_WORKERS: Final = 8
_CURVES_EVERY: Final = 15.0
"""Seconds between two looks at the curves. Samples are not taken more often."""


class View:
    """The lines and tables of one look, beside those of `status`. The curves are read now and then only."""

    def __init__(self, store: Store, window: timedelta) -> None:
        self._store = store
        self._step = max(window / _STEPS, timedelta(seconds=15))
        self._read_at: float | None = None
        self._curves: list[tuple[str, str, str]] = []

    def sorted(self, found: Iterable[Statistics], overview: Overview) -> list[Statistics]:
        """Return the queues in the order of their trouble: those with problems, then those with most tasks due."""
        order = {one.subject: place for place, one in reversed([*enumerate(overview.problems)])}
        last = len(order)
        return sorted(found, key=lambda one: (order.get(one.queue, last), -one.ready, one.queue, one.task_name or ""))

    def head(self, overview: Overview, width: int) -> list[str]:
        """Return the lines above the tables: the numbers of all queues, and what needs attention."""
        numbers = [_count(overview, name) for name in ("ready", "delayed", "running", "failed")]
        live = f"{overview.live_workers} {plural(overview.live_workers, 'worker')}"
        first = f"{short(overview.at)} UTC  {'  '.join(numbers)}  {live}"
        troubles = [f"! {one.sentence}" for one in overview.problems[:_PROBLEMS]]
        if (more := len(overview.problems) - _PROBLEMS) > 0:
            troubles.append(f"! and {more} more: outboxq check")
        return [cut(one, width) for one in (first, *troubles)]

    def tables(self, found: Sequence[Statistics], overview: Overview) -> list[Lines]:
        """Return the tables behind those of `status`: the curves and the workers."""
        now = time.monotonic()
        if self._read_at is None or now - self._read_at >= _CURVES_EVERY:
            self._read_at, self._curves = now, self._look(found, overview.at)
        lines: list[Lines] = [((f"the last {brief(self._step * _STEPS)}", "waiting", "done"), self._curves)]
        if overview.workers:
            rows = [_row(one, overview.at) for one in islice(_by_load(overview.workers), _WORKERS)]
            lines.append((("worker", "pid", "version", "busy", "seen ago"), rows))
        return lines

    def _look(self, found: Sequence[Statistics], now: datetime) -> list[tuple[str, str, str]]:
        queues = [*dict.fromkeys(one.queue for one in found)]
        chosen: list[str | None] = [None, *queues[:_CURVES]] if len(queues) > 1 else [None]
        return [self._curve(queue, now) for queue in chosen]

    def _curve(self, queue: str | None, now: datetime) -> tuple[str, str, str]:
        since = now - self._step * _STEPS
        found = self._store.trends(since=since, until=now, step=self._step, queue=queue)
        name = "all queues" if queue is None else queue
        return name, _with_top([one.ready for one in found.depths]), _with_top([one.completed for one in found.counts])


def _with_top(values: Sequence[float | None]) -> str:
    """Return the values as bars, and the largest of them in at most five characters."""
    most = max((one for one in values if one is not None), default=None)
    if most is None:
        return sparkline(values)
    size, place = float(most), 0
    while size >= 1000 and place < len(_UNITS) - 1:
        size, place = size / 1000, place + 1
    number = f"{size:.1f}" if place and size < 10 else f"{size:.0f}"
    return f"{sparkline(values)} {number}{_UNITS[place]}"


def sparkline(values: Sequence[float | None]) -> str:
    """Return the values as bars from 0 to the largest of them; None is a gap."""
    most = max((one for one in values if one is not None), default=0)
    if most <= 0:
        return "".join(" " if one is None else _BARS[0] for one in values)
    top = len(_BARS) - 1
    # Any number above 0 is seen to be one.
    return "".join(" " if one is None else _BARS[0 if one <= 0 else max(1, round(one / most * top))] for one in values)


def cut(text: str, width: int) -> str:
    """Return the text in one line of the terminal."""
    known = plain(text)
    return known if len(known) <= width else f"{known[: width - 1]}…"


def _count(overview: Overview, name: str) -> str:
    found: Any = getattr(overview, name)
    if isinstance(found, int):
        return f"{found} {name}"
    return f"{found.number}{'+' if found.at_least else ''} {name}"


def _by_load(workers: Iterable[LiveWorker]) -> list[LiveWorker]:
    return sorted(workers, key=lambda one: (-(one.busy or 0), one.label))


def _row(one: LiveWorker, now: datetime) -> tuple[object, ...]:
    busy = f"{'?' if one.busy is None else one.busy}/{one.concurrency}"
    return one.host or one.label, one.pid, one.version, busy, brief(now - one.last_seen_at)
