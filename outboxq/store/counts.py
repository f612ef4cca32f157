"""The numbers of `stats` that cost the same whatever waits and whatever has happened.

What waits is counted up to a bound. What happened is added up from what the workers have counted. The percentiles come from
histograms: they are interpolated within a bucket, and the buckets' bounds double, so they are off by less than a factor of two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from ..database.dialects import Row
from ..database.statements import depths, metrics, samples, statistics
from ..database.target import Target
from ..model.histograms import BOUNDS
from .samples import BOUND, LOOKED_UP, QueueSample, counted
from .transactions import Transactions

Found = dict[tuple[str, str | None], Row]
"""The numbers by queue, and by name of the task where they are about one."""

BOUND_BY_TASK = 1_000
"""The number of entries of each queue and priority of which the name is looked up: each is a look-up in a big table."""
_SPAN = timedelta(seconds=metrics.SPAN)


def waiting(
    store: Transactions, target: Target, values: Mapping[str, Any], *, by_task: bool, every_queue: bool
) -> Found:
    """Count what waits, runs and has failed, with the lower bounds marked: `ready_at_least` and so on."""
    most = BOUND_BY_TASK if by_task else BOUND
    given = {**store.values(target), **values, "most": most + 1, "most_looked_up": LOOKED_UP}
    found: Found = {}
    builders = depths.BY_TASK if by_task else depths.BY_QUEUE
    rows = target.run(builders[0] if every_queue else builders[1], given)
    if by_task:
        full = _full_queues(rows, most)
        for row in rows:
            later = row.pop("later")
            marks = {"ready_at_least": row["queue"] in full["ready"], "delayed_at_least": row["queue"] in full["later"]}
            found[row["queue"], row["task_name"]] = {**row, "delayed": later - row["retrying"], **marks}
    else:
        for queue, row in counted(rows).items():
            ready, later, retrying = row["ready"], row["later"], row["retrying"]
            found[queue, None] = {
                "ready": min(ready, most),
                "ready_at_least": ready > most,
                "delayed": min(later, most) - retrying,
                "delayed_at_least": later > most,
                "retrying": retrying,
                "retrying_at_least": later > LOOKED_UP,
                "oldest_ready_at": row["oldest_ready_at"],
            }
    parts = statistics.BY_TASK if by_task else statistics.BY_QUEUE
    for row in target.run(parts["running"], given):
        found.setdefault((row["queue"], row.get("task_name")), {})["running"] = row["running"]
    letters = target.run(depths.failed_by_task if by_task else depths.failed, {"most": BOUND + 1})
    many = sum(row["failed"] for row in letters) > BOUND
    for row in letters:
        mine = found.setdefault((row["queue"], row.get("task_name")), {})
        mine["failed"], mine["failed_at_least"] = row["failed"], many
    return found


def happened(target: Target, since: datetime, *, by_task: bool) -> tuple[Found, datetime] | None:
    """Add up what workers have counted since a moment; also return the begin of the first span that is kept. None: nothing is.

    A worker writes a span of ten seconds when it is over. So the window ends, as it begins, up to ten seconds earlier.
    """
    first: datetime | None = target.run(metrics.first)[0]["at"]
    if first is None:
        return None
    rows = target.run(metrics.SINCE["by_task" if by_task else "by_queue"], {"since": since - _SPAN})
    return {(row["queue"], row.get("task_name")): _numbers(row) for row in rows}, first


def last_samples(target: Target) -> dict[str, QueueSample]:
    """Return the last sample of each queue."""
    return {row["queue"]: QueueSample(**row) for row in target.run(samples.latest)}


def wanted(found: Found, names: Collection[str] | None) -> Found:
    """Return the numbers of these queues; None: of all."""
    return found if names is None else {key: row for key, row in found.items() if key[0] in names}


def percentile(histogram: Sequence[int], percent: int) -> timedelta | None:
    """Return the duration that so many of 100 did not exceed, by nearest rank, interpolated within its bucket.

    None for an empty histogram. What took longer than an hour counts as an hour.
    """
    total = sum(histogram)
    rank, before = (total * percent + 99) // 100, 0
    for bucket, number in enumerate(histogram):
        if number and before + number >= rank:
            low, high = (BOUNDS[bucket - 1] if bucket else 0.0), BOUNDS[min(bucket, len(BOUNDS) - 1)]
            return timedelta(seconds=low + (high - low) * (rank - before) / number)
        before += number
    return None


def _numbers(row: Row) -> Row:
    last = row["timed_out_last"]
    return {
        "by_workers": True,
        "completed": row["completed"],
        "failures": row["failed"] + last,
        "retries": row["retried"] + row["timed_out"] - last,
        **{name: row[name] for name in ("cancelled", "timed_out", "snoozed", "released", "lost")},
        "wait": [row[name] for name in metrics.WAIT],
        "run": [row[name] for name in metrics.RUN],
    }


def _full_queues(rows: Sequence[Row], most: int) -> dict[str, set[str]]:
    """Return the queues of which more entries are due, and due later, than were looked at."""
    totals: dict[str, dict[str, int]] = {"ready": {}, "later": {}}
    for row in rows:
        for name, total in totals.items():
            total[row["queue"]] = total.get(row["queue"], 0) + row[name]
    return {name: {queue for queue, number in total.items() if number > most} for name, total in totals.items()}
