"""Define the tables for tasks, their events, queues, keys and workers.

There are no foreign keys between the tables, because foreign keys would cost a third of the throughput and slow down
deletions. `verify` checks the references instead. No index on `task_executions` contains a column that a transition
changes, so PostgreSQL can keep a transition's updates heap-only (HOT). Columns that only a running task needs are in
the narrow table `task_leases`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Double,
    Identity,
    Index,
    Integer,
    MetaData,
    Sequence,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
)

from ...model import EventType
from ..column_types import Attempts, BigId, BoundedInstant, Instant, Number, Recoveries, Seconds, Status, Xid8
from ..typed_table import TypedColumns, metadata, typed_table

AGGRESSIVE_VACUUM = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 5000,
    "autovacuum_vacuum_cost_delay": 0,
}
"""Settings for small tables whose rows are constantly inserted and deleted. Autovacuum starts at a fixed number of dead
rows instead of at a fraction of the table's rows, and runs at full speed.
"""


def _partial_index(name: str, *columns: ColumnElement[Any], where: ColumnElement[bool], unique: bool = False) -> None:
    """Add an index on the rows of a table that meet a condition, on both databases."""
    Index(name, *columns, unique=unique, postgresql_where=where, sqlite_where=where)


task_position = Sequence("task_position", metadata=metadata)
"""The sequence for `position` on PostgreSQL. The order of a key's tasks must not depend on the producers' clocks."""


VERSION_TABLE = "outboxq_alembic_version"
"""The table for Alembic's revision. It is separate from the host application's table."""

version_table = Table(
    VERSION_TABLE, MetaData(), Column("version_num", Text), Column("oldest_code", Text), Column("fingerprint", Text)
)
"""The revision of the schema, and the oldest code that it supports; see `revisions.py`."""


class OptionColumns(TypedColumns):
    """A task's options (`model.TaskOptions`), as stored for each execution, subscription and schedule."""

    queue = Column(Text, nullable=False)
    priority = Column(SmallInteger, nullable=False)
    max_attempts = Column(Attempts)
    lease_seconds = Column(Seconds, nullable=False)
    timeout_seconds = Column(Seconds)
    on_dead_letter = Column(Text, nullable=False)


_option = vars(OptionColumns)


class TaskExecutionsColumns(OptionColumns):
    id = Column(Uuid, primary_key=True)
    pipeline_execution_id = Column(Uuid, nullable=False)
    task_name = Column(Text, nullable=False)
    queue = _option["queue"]
    topic = Column(Text)
    partition_key = Column(Text)
    position = Column(Number, nullable=False)
    priority = _option["priority"]
    args = Column(Text, nullable=False)  # text, not jsonb: nothing queries it, and parsing it costs a fifth of a claim
    headers = Column(Text)
    status = Column(Status, nullable=False)
    attempt = Column(Attempts, nullable=False)
    max_attempts = _option["max_attempts"]
    recovery_attempts = Column(Recoveries, nullable=False)
    lease_seconds = _option["lease_seconds"]
    timeout_seconds = _option["timeout_seconds"]
    lease_token = Column(Number, nullable=False)
    worker_id = Column(Uuid)
    cancel_requested_at = Column(BoundedInstant)
    on_dead_letter = _option["on_dead_letter"]
    expires_at = Column(BoundedInstant)
    retry_at = Column(BoundedInstant)
    first_started_at = Column(BoundedInstant)
    started_at = Column(BoundedInstant)
    completed_at = Column(BoundedInstant)
    created_at = Column(BoundedInstant, nullable=False)
    updated_at = Column(BoundedInstant, nullable=False)
    last_error = Column(Text)
    result = Column(Text)


task_executions = typed_table(
    "task_executions",
    TaskExecutionsColumns,
    # Half of each page is kept free for the row versions that claims and completions write, because a batch updates
    # whole pages at once. When a queue is drained in batches of 100, only 49 % of the updates stay heap-only with a
    # fillfactor of 70. With 50, it is 90 %, and there is 17 % less WAL.
    storage={"fillfactor": 50},
)

# Tasks that were created together, by one emitted event or in one batch. A single task is its own pipeline and needs no
# index entry.
_made_together = task_executions.c.pipeline_execution_id != task_executions.c.id
_partial_index("ix_task_executions_pipeline", task_executions.c.pipeline_execution_id, where=_made_together)


class TaskOutboxColumns(TypedColumns):
    id = Column(BigId, Identity(), primary_key=True)
    task_execution_id = Column(Uuid, nullable=False, unique=True)
    queue = Column(Text, nullable=False)
    priority = Column(SmallInteger, nullable=False)
    partition_key = Column(Text)
    position = Column(Number, nullable=False)
    topic = Column(Text)
    available_at = Column(BoundedInstant, nullable=False)
    expires_at = Column(BoundedInstant)
    created_at = Column(BoundedInstant, nullable=False)


task_outbox = typed_table("task_outbox", TaskOutboxColumns, sqlite_autoincrement=True, storage=AGGRESSIVE_VACUUM)

_entry = task_outbox.c
_without_key, _with_key = _entry.partition_key.is_(None), _entry.partition_key.is_not(None)

# Claims read in this order: within one queue and priority, the due rows are a contiguous range.
_partial_index("ix_task_outbox_due", _entry.queue, _entry.priority, _entry.available_at, _entry.id, where=_without_key)
# Tasks with a key have separate indexes, so that tasks without one do not incur their cost. One index is by key, with
# each key's head first, to scan from key to key. The other is by due time, to find due entries behind many keys that
# are not due.
_key_order = (_entry.queue, _entry.partition_key, _entry.priority.desc(), _entry.position)
_partial_index("ix_task_outbox_key", *_key_order, where=_with_key)
_partial_index("ix_task_outbox_key_due", _entry.queue, _entry.available_at, _entry.id, where=_with_key)


class TaskLeasesColumns(TypedColumns):
    """A row for each running task. A claim inserts it, the end of the claim deletes it, and heartbeats change only this
    row.

    The alternative was to keep these columns in `task_executions`, with an index for recovery. That index, on
    `lease_expires_at`, would prevent HOT for every update: claims, completions and heartbeats. A heartbeat would write
    257 bytes of WAL instead of 81. An old snapshot would bloat the large table instead of this small one. This table
    does not need an index for recovery, which reads 1,000 running leases in 0.07 ms.
    """

    task_execution_id = Column(Uuid, primary_key=True)
    queue = Column(Text, nullable=False)  # to count running tasks against the queue's limit
    lease_token = Column(Number, nullable=False)
    worker_id = Column(Uuid, nullable=False)
    lease_expires_at = Column(BoundedInstant, nullable=False)
    begun = Column(Boolean)  # False: its handler has not begun, so its worker's death does not count against it
    progress = Column(Double)  # from 0 to 1; NULL: its handler has not reported any
    progress_note = Column(Text)


task_leases = typed_table("task_leases", TaskLeasesColumns, storage={"fillfactor": 50, **AGGRESSIVE_VACUUM})


class ExecutionEventsColumns(TypedColumns):
    sequence_num = Column(BigId, Identity(), primary_key=True)
    pipeline_execution_id = Column(Uuid, nullable=False)
    task_execution_id = Column(Uuid)
    event_type = Column(Text, nullable=False)  # no CHECK: a later release adds types while older workers run
    event_data = Column(Text)
    worker_id = Column(Uuid)
    lease_token = Column(BigInteger)
    created_at = Column(BoundedInstant, nullable=False)
    # The transaction that wrote the event. Readers of the log stop before the oldest transaction that is still open,
    # because the numbers are not in commit order. The PostgreSQL migration sets a default that fills this column. It is
    # NULL on SQLite, where transactions commit one after the other.
    xact_id = Column(Xid8().with_variant(Integer, "sqlite"))


execution_events = typed_table("execution_events", ExecutionEventsColumns, sqlite_autoincrement=True)

_event = execution_events.c
_is_claim = _event.event_type == EventType.CLAIMED.value
_is_end = (_event.event_type != EventType.CLAIMED.value) & _event.lease_token.is_not(None)
_is_other = _event.lease_token.is_(None)

# Three disjoint indexes, so that an event costs one entry. A task's history is read through all three. The two unique
# indexes make the log itself refuse a second claim or a second end under one lease token.
_of_one_claim = (_event.task_execution_id, _event.lease_token)
_partial_index("uq_execution_events_claim", *_of_one_claim, where=_is_claim, unique=True)
_partial_index("uq_execution_events_end", *_of_one_claim, where=_is_end, unique=True)
_partial_index("ix_execution_events_other", _event.task_execution_id, where=_is_other)


class DeadLettersColumns(TypedColumns):
    """A row for each Failed task. The row is inserted when the task enters that status, and deleted when the task
    leaves it.

    An index on `status` would prevent HOT updates for all tasks, so the few Failed tasks are listed in this table.
    """

    task_execution_id = Column(Uuid, primary_key=True)
    queue = Column(Text, nullable=False)
    task_name = Column(Text, nullable=False)
    topic = Column(Text)
    partition_key = Column(Text)
    exception = Column(Text)  # module and name of the exception's class; NULL: abandoned, or failed by an operation
    failed_at = Column(BoundedInstant, nullable=False)
    # Its idempotency key, if another task took it over; NULL: it still holds the key, or did not have one.
    lost_key = Column(Text)


dead_letters = typed_table(
    "dead_letters", DeadLettersColumns, Index("ix_dead_letters_failed_at", "failed_at", "task_execution_id")
)


class IdempotencyKeysColumns(TypedColumns):
    scope = Column(Text, primary_key=True)  # the task's name
    key = Column(Text, primary_key=True)
    task_execution_id = Column(Uuid, nullable=False)
    expires_at = Column(BoundedInstant)  # the key is free from this time on
    until_finished = Column(Boolean, nullable=False)  # the key is free once the task has ended
    created_at = Column(BoundedInstant, nullable=False)


idempotency_keys = typed_table(
    "idempotency_keys", IdempotencyKeysColumns, Index("ix_idempotency_keys_task_execution_id", "task_execution_id")
)


class PartitionClaimsColumns(TypedColumns):
    queue = Column(Text, primary_key=True)
    partition_key = Column(Text, primary_key=True)
    task_execution_id = Column(Uuid, nullable=False)
    held = Column(Boolean, nullable=False)  # kept by a Failed head with `on_dead_letter=hold`


partition_claims = typed_table(
    "partition_claims",
    PartitionClaimsColumns,
    UniqueConstraint("task_execution_id"),  # finds the key that a finished task frees; a task holds at most one key
    storage=AGGRESSIVE_VACUUM,
)


class TaskSubscriptionsColumns(OptionColumns):
    topic = Column(Text, primary_key=True)  # an exact topic, or a pattern such as order.*
    task_name = Column(Text, primary_key=True)
    # The task's parameter that takes the payload. NULL: the task belongs to a relay to a broker, which gets a message
    # instead of a task.
    parameter = Column(Text)


task_subscriptions = typed_table("task_subscriptions", TaskSubscriptionsColumns)


class QueueSettingsColumns(TypedColumns):
    queue = Column(Text, primary_key=True)
    paused_at = Column(BoundedInstant)
    pause_reason = Column(Text)  # who paused it, and why; NULL: it is not paused, or neither is known
    concurrency_limit = Column(Integer)
    rate_limit = Column(Integer)
    rate_seconds = Column(Seconds)
    rate_full_at = Column(BoundedInstant)  # the time at which the bucket of starts is full again
    key_concurrency = Column(Integer)  # the limit for each concurrency key; NULL: 1 if the next column limits keys
    key_rate_limit = Column(Integer)  # the limit for each key of either kind
    key_rate_seconds = Column(Seconds)
    fair = Column(Boolean, nullable=False)  # keys take turns; False: the key whose task has been due longest is next
    updated_at = Column(BoundedInstant, nullable=False)


queue_settings = typed_table("queue_settings", QueueSettingsColumns)


class KeyRatesColumns(TypedColumns):
    """A row for each key that has recently used some of its rate. The row is deleted when the key's bucket is full
    again.
    """

    queue = Column(Text, primary_key=True)
    partition_key = Column(Text, primary_key=True)
    full_at = Column(BoundedInstant, nullable=False)  # the time at which the bucket of starts is full again


key_rates = typed_table(
    "key_rates", KeyRatesColumns, Index("ix_key_rates_full_at", "queue", "full_at"), storage=AGGRESSIVE_VACUUM
)


class WorkersColumns(TypedColumns):
    """A row for each worker, for `explain` and statistics only: recovery never depends on it."""

    id = Column(Uuid, primary_key=True)
    label = Column(Text, nullable=False)
    queues = Column(Text)  # JSON array; NULL: all
    topics = Column(Text)  # JSON array; NULL: all
    concurrency = Column(Integer, nullable=False)
    task_names = Column(Text, nullable=False)  # JSON array
    unknown_tasks = Column(
        Text
    )  # JSON array of [queue, task name]: unknown tasks that it came across recently; NULL: none
    started_at = Column(BoundedInstant, nullable=False)
    last_seen_at = Column(BoundedInstant, nullable=False)
    ended_at = Column(BoundedInstant)  # it stopped normally; NULL: it is live, or was killed or cut off
    # The next seven columns are NULL if only `register` has written the row.
    host = Column(Text)
    pid = Column(Integer)
    version = Column(Text)  # the version of the application's code, as reported by the application
    release = Column(Text)  # the version of outboxq
    busy = Column(Integer)  # threads that ran a handler when it was last seen
    isolation = Column(Text)  # 'thread', or 'process': each thread passes its handlers on to a child process
    receivers = Column(Text)  # JSON array of objects: the states of its receivers; NULL: it has none
    asked_to = Column(Text)  # 'quiet' or 'stop': a person's order; NULL: it claims tasks
    state = Column(Text)  # 'quiet' or 'stopping': the state that it has reached; NULL: it claims tasks
    stacks_asked_at = Column(BoundedInstant)  # a person is waiting for its stacks; NULL: it has answered
    stacks = Column(Text)  # the stacks of its threads, at `stacks_at`
    stacks_at = Column(BoundedInstant)
    failure = Column(Text)  # the error that keeps it from claiming or ending tasks; NULL: it works
    failing_since = Column(BoundedInstant)


workers = typed_table("workers", WorkersColumns)
# Finds the live workers without reading the workers that have ended. It does not contain columns that change while a
# worker lives (HOT).
_partial_index("ix_workers_present", workers.c.id, where=workers.c.ended_at.is_(None))


class SleepingWorkersColumns(TypedColumns):
    """A row for each worker that may have to be notified. The trigger reads this table, so it is kept small, and its
    rows are updated in place (HOT).
    """

    worker_id = Column(Uuid, primary_key=True)
    queue = Column(Text, primary_key=True)  # empty: all queues
    # The latest time at which the worker wakes without a notification. In the past: it is awake, or has ended.
    wakes_at = Column(Instant, nullable=False)
    # The number that its listening session has locked. NULL: the worker runs only tasks with certain topics, so it is
    # called for each task instead of by name.
    session = Column(BigInteger)


sleeping_workers = typed_table(
    "sleeping_workers",
    SleepingWorkersColumns,
    Index("ix_sleeping_workers_queue", "queue"),
    storage={"fillfactor": 50, **AGGRESSIVE_VACUUM},
)
