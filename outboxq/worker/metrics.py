"""The metrics of a worker: their names, labels and meanings. `prometheus.py` fills them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
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


TASKS: Final = Metric(
    name="outboxq_tasks",
    kind=Kind.GAUGE,
    labels=("queue", "state"),
    source=Source.DATABASE,
    help="Tasks that are ready, delayed, running or failed.",
)
OLDEST_READY_AGE: Final = Metric(
    name="outboxq_oldest_ready_age_seconds",
    kind=Kind.GAUGE,
    labels=("queue",),
    source=Source.DATABASE,
    help="Seconds since the task became due that has been due for longest; 0 if none is.",
)
LIVE_WORKERS: Final = Metric(
    name="outboxq_live_workers",
    kind=Kind.GAUGE,
    labels=("queue",),
    source=Source.DATABASE,
    help="Workers on the queue that were seen in the last 90 s.",
)
SCHEDULE_NEXT: Final = Metric(
    name="outboxq_schedule_next_timestamp_seconds",
    kind=Kind.GAUGE,
    labels=("schedule",),
    source=Source.DATABASE,
    help="Unix time of the next tick. It lies in the past if a tick has passed that no worker has planted. Not of paused schedules.",
)
SCHEDULE_LATENESS: Final = Metric(
    name="outboxq_schedule_lateness_seconds",
    kind=Kind.HISTOGRAM,
    labels=("schedule",),
    help="Seconds from a tick to the start of its handler, with jitter and what was caught up.",
)
TABLE_BYTES: Final = Metric(
    name="outboxq_table_bytes",
    kind=Kind.GAUGE,
    labels=("table",),
    source=Source.DATABASE,
    help="Bytes of the table with its indexes and partitions (PostgreSQL).",
)
TABLE_DEAD_ROWS: Final = Metric(
    name="outboxq_table_dead_rows",
    kind=Kind.GAUGE,
    labels=("table",),
    source=Source.DATABASE,
    help="Dead rows of the table that are not vacuumed yet, as PostgreSQL estimates them.",
)
ATTEMPTS: Final = Metric(
    name="outboxq_task_attempts_total",
    kind=Kind.COUNTER,
    labels=("queue", "task", "outcome"),
    help="Attempts that ended so.",
)
RUN_SECONDS: Final = Metric(
    name="outboxq_task_run_seconds",
    kind=Kind.HISTOGRAM,
    labels=("queue", "task"),
    help="Seconds from the start of the handler to its end.",
)
WAIT_SECONDS: Final = Metric(
    name="outboxq_task_wait_seconds",
    kind=Kind.HISTOGRAM,
    labels=("queue",),
    help="Seconds from the moment at which the task was due to the start of the handler.",
)
CLAIMS: Final = Metric(
    name="outboxq_claims_total",
    kind=Kind.COUNTER,
    labels=("result",),
    help="Tries to claim that found some task, found none, or ended in an error.",
)
CLAIM_SECONDS: Final = Metric(
    name="outboxq_claim_seconds", kind=Kind.HISTOGRAM, labels=("result",), help="Seconds of a try to claim."
)
CLAIMED_TASKS: Final = Metric(
    name="outboxq_claimed_tasks",
    kind=Kind.HISTOGRAM,
    labels=("result",),
    help="Tasks that a try to claim found.",
)
THREADS: Final = Metric(
    name="outboxq_worker_threads", kind=Kind.GAUGE, labels=("state",), help="Handler threads that are busy or idle."
)
LISTENING: Final = Metric(
    name="outboxq_worker_listening",
    kind=Kind.GAUGE,
    help="1: the worker notices new tasks at once. 0: it finds them by polling only.",
)
LAST_BEAT: Final = Metric(
    name="outboxq_worker_last_beat_timestamp_seconds",
    kind=Kind.GAUGE,
    help="Unix time at which the database last answered a heartbeat or the registration of the worker.",
)
RECOVERED: Final = Metric(
    name="outboxq_recovered_tasks_total",
    kind=Kind.COUNTER,
    labels=("queue",),
    help="Tasks that this worker took back from dead workers.",
)
LEASES_LOST: Final = Metric(
    name="outboxq_leases_lost_total",
    kind=Kind.COUNTER,
    labels=("queue",),
    help="Leases that this worker lost while it had the task.",
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
