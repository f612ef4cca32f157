"""The numbers of waiting, running and failed tasks, counted up to a bound: they cost the same whatever waits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..database.dialects import Row
from ..database.statements import depths, samples, statistics
from ..database.target import Target
from .samples import BOUND, LOOKED_UP, QueueSample, counted
from .transactions import Transactions

Found = dict[tuple[str, str | None], Row]
"""The numbers by queue, and by name of the task where they are about one."""

BOUND_BY_TASK = 1_000
"""The number of entries of each queue and priority of which the name is looked up: each is a look-up in a big table."""


def waiting(
    store: Transactions, target: Target, values: Mapping[str, Any], *, by_task: bool, names: Collection[str] | None
) -> Found:
    """Count what waits, runs and has failed in these queues (None: in all), with the lower bounds marked: `ready_at_least` and so on."""
    most = BOUND_BY_TASK if by_task else BOUND
    given = {**store.values(target), **values, "most": most + 1, "most_looked_up": LOOKED_UP}
    found: Found = {}
    builders = depths.BY_TASK if by_task else depths.BY_QUEUE
    rows = target.run(builders[0] if names is None else builders[1], given)
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
    failed = target.run(depths.failed_by_task if by_task else depths.failed, {"most": BOUND + 1})
    for row in failed:
        found.setdefault((row["queue"], row.get("task_name")), {})["failed"] = row["failed"]
    if (
        sum(row["failed"] for row in failed) > BOUND
    ):  # of all queues together, so those that were not counted may be of any
        for queue in () if by_task else names or ():
            found.setdefault((queue, None), {})
        for mine in found.values():
            mine["failed_at_least"] = True
    return found


def last_samples(store: Transactions, target: Target) -> dict[str, QueueSample]:
    """Return the last sample of each queue."""
    return {row["queue"]: QueueSample(**row) for row in target.run(samples.latest, store.values(target))}


def wanted(found: Found, names: Collection[str] | None) -> Found:
    """Return the numbers of these queues; None: of all."""
    return found if names is None else {key: row for key, row in found.items() if key[0] in names}


def _full_queues(rows: Sequence[Row], most: int) -> dict[str, set[str]]:
    """Return the queues of which more entries are due, and due later, than were looked at."""
    totals: dict[str, dict[str, int]] = {"ready": {}, "later": {}}
    for row in rows:
        for name, total in totals.items():
            total[row["queue"]] = total.get(row["queue"], 0) + row[name]
    return {name: {queue for queue, number in total.items() if number > most} for name, total in totals.items()}
