"""The metrics of a worker: their names, labels and meanings. `prometheus.py` fills them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final


class Kind(StrEnum):
    """The kind of a metric, as Prometheus calls it."""

    COUNTER = "counter"
    """Grows from the start of the process on."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Source(StrEnum):
    """The origin of a metric's numbers."""

    PROCESS = "process"
    """This process's memory. Add them up over all processes."""
    DATABASE = "database"
    """The database, so every process has the same. Take the maximum over all processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric, as `/metrics` describes it."""

    name: str
    """The name as it is queried; that of a counter ends in `_total`."""
    kind: Kind
    labels: tuple[str, ...] = ()
    source: Source = Source.PROCESS
    help: str


def _metric(kind: Kind, source: Source, name: str, *labels: str, help: str) -> Metric:
    return Metric(name=name, kind=kind, labels=labels, source=source, help=help)


_of_database = partial(_metric, Kind.GAUGE, Source.DATABASE)
_gauge, _counter, _histogram = (
    partial(_metric, kind, Source.PROCESS) for kind in (Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM)
)

TASKS: Final = _of_database("outboxq_tasks", "queue", "state", help="Tasks that are ready, delayed, running or failed.")
OLDEST_READY_AGE: Final = _of_database(
    "outboxq_oldest_ready_age_seconds",
    "queue",
    help="Seconds since the task became due that has been due for longest; 0 if none is.",
)
LIVE_WORKERS: Final = _of_database(
    "outboxq_live_workers", "queue", help="Workers on the queue that were seen in the last 90 s."
)
SCHEDULE_NEXT: Final = _of_database(
    "outboxq_schedule_next_timestamp_seconds",
    "schedule",
    help="Unix time of the next tick. It lies in the past if a tick has passed that no worker has planted. Not of paused schedules.",
)
SCHEDULE_LATENESS: Final = _histogram(
    "outboxq_schedule_lateness_seconds",
    "schedule",
    help="Seconds from a tick to the start of its handler, with jitter and what was caught up.",
)
TABLE_BYTES: Final = _of_database(
    "outboxq_table_bytes", "table", help="Bytes of the table with its indexes and partitions (PostgreSQL)."
)
TABLE_DEAD_ROWS: Final = _of_database(
    "outboxq_table_dead_rows",
    "table",
    help="Dead rows of the table that are not vacuumed yet, as PostgreSQL estimates them.",
)
ATTEMPTS: Final = _counter("outboxq_task_attempts_total", "queue", "task", "outcome", help="Attempts that ended so.")
RUN_SECONDS: Final = _histogram(
    "outboxq_task_run_seconds", "queue", "task", help="Seconds from the start of the handler to its end."
)
WAIT_SECONDS: Final = _histogram(
    "outboxq_task_wait_seconds",
    "queue",
    help="Seconds from the moment at which the task was due to the start of the handler.",
)
CLAIMS: Final = _counter(
    "outboxq_claims_total", "result", help="Tries to claim that found some task, found none, or ended in an error."
)
CLAIM_SECONDS: Final = _histogram("outboxq_claim_seconds", "result", help="Seconds of a try to claim.")
CLAIMED_TASKS: Final = _histogram("outboxq_claimed_tasks", "result", help="Tasks that a try to claim found.")
THREADS: Final = _gauge("outboxq_worker_threads", "state", help="Handler threads that are busy or idle.")
LISTENING: Final = _gauge(
    "outboxq_worker_listening", help="1: the worker notices new tasks at once. 0: it finds them by polling only."
)
LAST_BEAT: Final = _gauge(
    "outboxq_worker_last_beat_timestamp_seconds",
    help="Unix time at which the database last answered a heartbeat or the registration of the worker.",
)
RECOVERED: Final = _counter(
    "outboxq_recovered_tasks_total", "queue", help="Tasks that this worker took back from dead workers."
)
LEASES_LOST: Final = _counter(
    "outboxq_leases_lost_total", "queue", help="Leases that this worker lost while it had the task."
)

METRICS: Final = (
    TASKS,
    OLDEST_READY_AGE,
    LIVE_WORKERS,
    ATTEMPTS,
    RUN_SECONDS,
    WAIT_SECONDS,
    CLAIMS,
    CLAIM_SECONDS,
    CLAIMED_TASKS,
    THREADS,
    LISTENING,
    LAST_BEAT,
    RECOVERED,
    LEASES_LOST,
    SCHEDULE_NEXT,
    SCHEDULE_LATENESS,
    TABLE_BYTES,
    TABLE_DEAD_ROWS,
)
"""All of them, in the order of the documentation."""
