"""A day of statistics for the filled tables: the workers' metrics, and samples of waiting tasks."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine

from outboxq.database.tables import queue_samples, task_metrics
from outboxq.model.histograms import BUCKETS
from tests.integrations.dashboard.shop import BOOK, CHARGE, EXPORT, PARCEL, RECEIPT, id_at

MINUTE = timedelta(minutes=1)

BUSY = (
    ("default", RECEIPT, 40, 5, 7),
    ("default", CHARGE, 25, 6, 8),
    ("default", PARCEL, 12, 4, 10),
    ("exports", EXPORT, 2, 12, 14),
    ("ledger", BOOK, 6, 3, 4),
)
"""Queue, task, attempts per minute, and the usual histogram buckets of the wait and the run."""


def moments(now: datetime) -> list[tuple[datetime, int]]:
    """The times of a day's statistics, each with the number of minutes it covers: 1 in the last hour, 10 before that."""
    minute = now.replace(second=0, microsecond=0)
    early = [(minute - minutes * MINUTE, 10) for minutes in range(24 * 60, 60, -10)]
    return early + [(minute - minutes * MINUTE, 1) for minutes in range(60, 0, -1)]


def fill_statistics(engine: Engine, now: datetime) -> None:
    """Write a day of metrics and samples that vary as with busy workers, with more failures now and then."""
    metrics: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    for number, (at, minutes) in enumerate(moments(now)):
        wave = 1 + 0.6 * math.sin(number / 12)
        trouble = 4 if 100 <= number % 140 < 108 else 1
        for queue, task, rate, wait, run in BUSY:
            failed = int(rate * minutes * 0.02 * trouble + (number % 3 == 0))
            total = max(1, int(rate * minutes * wave))
            retried = int(total * 0.05 * trouble)
            metrics.append(
                {
                    "id": id_at(at),
                    "at": at,
                    "seconds": 60,
                    "queue": queue,
                    "task_name": task,
                    "worker_id": None,
                    "completed": total - failed - retried,
                    "retried": retried,
                    "failed": failed,
                    **dict.fromkeys(("cancelled", "snoozed", "released", "lost", "timed_out", "timed_out_last"), 0),
                    "wait_seconds": 0.001 * 2**wait * total,
                    "run_seconds": 0.001 * 2**run * total,
                    **_histogram("wait", wait + (trouble > 1) * 4, total),
                    **_histogram("run", run, total),
                }
            )
        for queue, due in (("default", 30), ("exports", 5), ("newsletter", 12), ("ledger", 4), ("video", 3)):
            samples.append(
                {
                    "at": at,
                    "queue": queue,
                    "due": int(due * wave * trouble),
                    "delayed": 3 if queue == "default" else 0,
                    "running": 2,
                    "failed": number // 8 if queue == "default" else 0,
                    "oldest_due_at": at - MINUTE,
                    "exact": True,
                }
            )
    with engine.begin() as connection:
        connection.execute(task_metrics.insert(), metrics)
        connection.execute(queue_samples.insert(), samples)


def _histogram(name: str, usual: int, total: int) -> dict[str, int]:
    """Most values in the usual bucket, some next to it, and one in a hundred far above it."""
    shares = {usual - 1: total // 4, usual + 1: total // 5, min(usual + 5, BUCKETS - 1): total // 100}
    rest = total - sum(shares.values())
    return {f"{name}_{bucket}": shares.get(bucket, rest if bucket == usual else 0) for bucket in range(BUCKETS)}
