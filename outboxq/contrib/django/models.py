"""Read-only models of outboxq's tables, for queries, for the admin, and for Django's flush after a test.

Only the outbox writes the tables, since each change of a task is more than one row.
"""
# ruff: noqa: D106, DJ001, DJ008 - Django's rules for its own tables; in outboxq's an absent text is NULL

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models

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

    def delete(self, *_args: Any, **_options: Any) -> NoReturn:
        """Raise InvalidTransition."""
        refuse(type(self))


def refuse(model: Any) -> NoReturn:
    raise InvalidTransition(
        f"{model._meta.label} is read-only; change tasks through outboxes[alias].store, which keeps outbox, events and "  # noqa: SLF001 - Django's public name for it
        "leases consistent"
    )


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

    class Meta:
        db_table = table("task_executions")
        default_permissions = ("view",)
        permissions = (
            ("retry_taskexecution", "Can retry task executions"),
            ("cancel_taskexecution", "Can cancel task executions"),
            ("discard_taskexecution", "Can discard task executions"),
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

    class Meta:
        db_table = table("task_outbox")
        default_permissions = ("view",)
        verbose_name_plural = "outbox entries"


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

    class Meta:
        db_table = table("execution_events")
        default_permissions = ("view",)


class TaskLease(ReadOnlyModel):
    task_execution_id = models.UUIDField(primary_key=True)
    queue = models.TextField()
    lease_token = models.BigIntegerField()
    worker_id = models.UUIDField()
    lease_expires_at = InstantField()
    begun = models.BooleanField(null=True)

    class Meta:
        db_table = table("task_leases")
        default_permissions = ()


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

    class Meta:
        db_table = table("dead_letters")
        default_permissions = ("view",)


class IdempotencyKey(ReadOnlyModel):
    pk = models.CompositePrimaryKey("scope", "key")
    scope = models.TextField()
    key = models.TextField()
    task_execution_id = models.UUIDField()
    expires_at = InstantField(null=True)
    until_finished = models.BooleanField()
    created_at = InstantField()

    class Meta:
        db_table = table("idempotency_keys")
        default_permissions = ()


class PartitionClaim(ReadOnlyModel):
    pk = models.CompositePrimaryKey("queue", "partition_key")
    queue = models.TextField()
    partition_key = models.TextField()
    task_execution_id = models.UUIDField(unique=True)
    held = models.BooleanField()

    class Meta:
        db_table = table("partition_claims")
        default_permissions = ()


class TaskSubscription(ReadOnlyModel):
    pk = models.CompositePrimaryKey("topic", "task_name")
    topic = models.TextField()
    task_name = models.TextField()
    parameter = models.TextField()
    queue = models.TextField()
    priority = models.SmallIntegerField()
    max_attempts = models.IntegerField(null=True)
    lease_seconds = models.FloatField()
    timeout_seconds = models.FloatField(null=True)
    on_dead_letter = models.TextField()

    class Meta:
        db_table = table("task_subscriptions")
        default_permissions = ()


class QueueSettings(ReadOnlyModel):
    """A row of `queue_settings`: the pause, the limits and the order of a queue."""

    queue = models.TextField(primary_key=True)
    paused_at = InstantField(null=True)
    concurrency_limit = models.IntegerField(null=True)
    rate_limit = models.IntegerField(null=True)
    rate_seconds = models.FloatField(null=True)
    rate_full_at = InstantField(null=True)
    fair = models.BooleanField()
    updated_at = InstantField()

    class Meta:
        db_table = table("queue_settings")
        default_permissions = ("view", "change")
        verbose_name_plural = "queue settings"

    def __str__(self) -> str:
        return str(self.queue)


class LiveWorker(ReadOnlyModel):
    id = models.UUIDField(primary_key=True)
    label = models.TextField()
    queues = models.TextField(null=True)
    topics = models.TextField(null=True)
    concurrency = models.IntegerField()
    task_names = models.TextField()
    unknown_tasks = models.TextField(null=True)
    started_at = InstantField()
    last_seen_at = InstantField()

    class Meta:
        db_table = table("workers")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.label)


class SleepingWorker(ReadOnlyModel):
    pk = models.CompositePrimaryKey("worker_id", "queue")
    worker_id = models.UUIDField()
    queue = models.TextField()
    wakes_at = InstantField()

    class Meta:
        db_table = table("sleeping_workers")
        default_permissions = ()
