"""Read-only models of outboxq's tables, for queries, for the admin, and for Django's flush after a test.

Only the outbox writes the tables, since each change of a task is more than one row.
"""
# ruff: noqa: D106, DJ001, DJ008 - Django's rules for its own tables; in outboxq's an absent text is NULL

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models
from sqlalchemy import BigInteger, Boolean, Double, Integer, SmallInteger, Table, Text, UniqueConstraint, Uuid

from ...database import tables
from ...database.column_types import UtcDateTime
from ...errors import InvalidTransition
from ...model import TaskStatus
from .fields import InstantField, table


class ReadOnlyQuerySet(models.QuerySet):
    """A query on outboxq's tables. Methods that write raise InvalidTransition."""

    def _refuse(self, *_args: Any, **_options: Any) -> NoReturn:
        refuse(self.model)

    update = delete = bulk_create = bulk_update = _refuse


class ReadOnlyModel(models.Model):
    """A row of one of outboxq's tables."""

    objects = ReadOnlyQuerySet.as_manager()

    class Meta:
        abstract = True

    def save(self, *_args: Any, **_options: Any) -> NoReturn:
        """Raise InvalidTransition."""
        refuse(type(self))

    delete = save


def refuse(model: Any) -> NoReturn:
    raise InvalidTransition(
        f"{model._meta.label} is read-only; change tasks through outboxes[alias].store, which keeps outbox, events and "  # noqa: SLF001 - Django's public name for it
        "leases consistent"
    )


def _meta(name: str, *permissions: str, **options: Any) -> Any:
    """Return the Meta of a model of this table."""
    return type("Meta", (), {"db_table": table(name), "default_permissions": permissions, **options})


class TaskExecution(ReadOnlyModel):
    """A row of `task_executions`."""

    id = models.UUIDField(primary_key=True, editable=False)
    pipeline_execution_id = models.UUIDField()
    task_name = models.TextField()
    queue = models.TextField()
    topic = models.TextField(null=True)
    partition_key = models.TextField(null=True)
    position = models.BigIntegerField()
    priority = models.SmallIntegerField()
    args = models.TextField()
    headers = models.TextField(null=True)
    status = models.TextField(choices=[(one.value, one.value) for one in TaskStatus])
    attempt = models.IntegerField()
    max_attempts = models.IntegerField(null=True)
    recovery_attempts = models.IntegerField()
    lease_seconds = models.FloatField()
    timeout_seconds = models.FloatField(null=True)
    lease_token = models.BigIntegerField()
    worker_id = models.UUIDField(null=True)
    cancel_requested_at = InstantField(null=True)
    on_dead_letter = models.TextField()
    expires_at = InstantField(null=True)
    retry_at = InstantField(null=True)
    first_started_at = InstantField(null=True)
    started_at = InstantField(null=True)
    completed_at = InstantField(null=True)
    created_at = InstantField()
    updated_at = InstantField()
    last_error = models.TextField(null=True)
    result = models.TextField(null=True)

    Meta = _meta(
        "task_executions",
        "view",
        permissions=tuple(
            (f"{verb}_taskexecution", f"Can {verb} task executions") for verb in ("retry", "cancel", "discard")
        ),
    )

    def __str__(self) -> str:
        return f"{self.task_name} {self.id}"


class OutboxEntry(ReadOnlyModel):
    """A row of `task_outbox`, which makes a Ready task claimable."""

    id = models.BigAutoField(primary_key=True)
    task_execution_id = models.UUIDField(unique=True)
    queue = models.TextField()
    priority = models.SmallIntegerField()
    partition_key = models.TextField(null=True)
    position = models.BigIntegerField()
    topic = models.TextField(null=True)
    available_at = InstantField()
    expires_at = InstantField(null=True)
    created_at = InstantField()

    Meta = _meta("task_outbox", "view", verbose_name_plural="outbox entries")


class ExecutionEvent(ReadOnlyModel):
    """A row of `execution_events`: a transition of a task, kept with it."""

    sequence_num = models.BigAutoField(primary_key=True)
    pipeline_execution_id = models.UUIDField()
    task_execution_id = models.UUIDField(null=True)
    event_type = models.TextField()
    event_data = models.TextField(null=True)
    worker_id = models.UUIDField(null=True)
    lease_token = models.BigIntegerField(null=True)
    created_at = InstantField()

    Meta = _meta("execution_events", "view")


class QueueSettings(ReadOnlyModel):
    """A row of `queue_settings`: the pause, the limits and the order of a queue."""

    queue = models.TextField(primary_key=True)
    paused_at = InstantField(null=True)
    concurrency_limit = models.IntegerField(null=True)
    rate_limit = models.IntegerField(null=True)
    rate_seconds = models.FloatField(null=True)
    rate_full_at = InstantField(null=True)
    key_concurrency = models.IntegerField(null=True)
    key_rate_limit = models.IntegerField(null=True)
    key_rate_seconds = models.FloatField(null=True)
    fair = models.BooleanField()
    updated_at = InstantField()

    Meta = _meta("queue_settings", "view", "change", verbose_name_plural="queue settings")

    def __str__(self) -> str:
        return str(self.queue)


class DeadLetter(ReadOnlyModel):
    """A row of `dead_letters`: a Failed task that was neither redriven nor discarded."""

    task_execution_id = models.UUIDField(primary_key=True)
    queue = models.TextField()
    task_name = models.TextField()
    topic = models.TextField(null=True)
    partition_key = models.TextField(null=True)
    exception = models.TextField(null=True)
    failed_at = InstantField()
    lost_key = models.TextField(null=True)

    Meta = _meta("dead_letters", "view")


class LiveWorker(ReadOnlyModel):
    """A row of `workers`: a worker as it registered itself."""

    id = models.UUIDField(primary_key=True)
    label = models.TextField()
    queues = models.TextField(null=True)
    topics = models.TextField(null=True)
    concurrency = models.IntegerField()
    task_names = models.TextField()
    unknown_tasks = models.TextField(null=True)
    started_at = InstantField()
    last_seen_at = InstantField()
    host = models.TextField(null=True)
    pid = models.IntegerField(null=True)
    version = models.TextField(null=True)
    release = models.TextField(null=True)
    busy = models.IntegerField(null=True)
    isolation = models.TextField(null=True)

    Meta = _meta("workers", "view")

    def __str__(self) -> str:
        return str(self.label)


_FIELDS: dict[type, Any] = {
    BigInteger: models.BigIntegerField,
    Boolean: models.BooleanField,
    Double: models.FloatField,
    Integer: models.IntegerField,
    SmallInteger: models.SmallIntegerField,
    Text: models.TextField,
    UtcDateTime: InstantField,
    Uuid: models.UUIDField,
}


def _derived(name: str, source: Table, *permissions: str, **options: Any) -> Any:
    """Return a model with the columns of this table. `options`: of its Meta."""
    key = [column.name for column in source.primary_key]
    unique = [one.columns.keys() for one in source.constraints if isinstance(one, UniqueConstraint)]
    fields: dict[str, Any] = {"pk": models.CompositePrimaryKey(*key)} if len(key) > 1 else {}
    for column in source.columns:
        fields[column.name] = _FIELDS[type(column.type)](
            primary_key=key == [column.name], unique=[column.name] in unique, null=column.nullable
        )
    words = {"__module__": __name__, "__str__": _key_of, "Meta": _meta(source.name, *permissions, **options)}
    return type(name, (ReadOnlyModel,), {**words, **fields})


def _key_of(row: models.Model) -> str:
    return str(row.pk)


class BatchChange(ReadOnlyModel):
    """A row of `task_batch_changes`: what an open transaction changes of a batch."""

    id = models.BigAutoField(primary_key=True)
    batch_id = models.UUIDField()
    added = models.IntegerField()
    completed = models.IntegerField()
    failed = models.IntegerField()
    cancelled = models.IntegerField()
    closes = models.BooleanField()
    changed_at = InstantField()

    Meta = _meta("task_batch_changes")


Batch = _derived("Batch", tables.task_batches, "view", verbose_name_plural="batches")
IdempotencyKey = _derived("IdempotencyKey", tables.idempotency_keys)
KeyRate = _derived("KeyRate", tables.key_rates)
MaintenanceJob = _derived("MaintenanceJob", tables.maintenance_jobs)
PartitionClaim = _derived("PartitionClaim", tables.partition_claims)
QueueSample = _derived("QueueSample", tables.queue_samples)
ScheduleTick = _derived("ScheduleTick", tables.schedule_ticks)
SleepingWorker = _derived("SleepingWorker", tables.sleeping_workers)
TaskLease = _derived("TaskLease", tables.task_leases)
TaskMetric = _derived("TaskMetric", tables.task_metrics)
TaskSchedule = _derived("TaskSchedule", tables.task_schedules, "view", "change")
TaskStep = _derived("TaskStep", tables.task_steps)
TaskSubscription = _derived("TaskSubscription", tables.task_subscriptions)
