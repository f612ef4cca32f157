"""Read-only models of outboxq's tables for queries, for the admin, and for the flush that Django performs after a test.

Only the outbox writes to the tables, because every change to a task affects several rows.
"""
# ruff: noqa: D106 - a Meta needs no docstring

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

from django.db import models
from sqlalchemy import BigInteger, Boolean, Double, Enum, Integer, SmallInteger, Table, Text, UniqueConstraint, Uuid

from ...database import tables
from ...database.column_types import UtcDateTime, iso
from ...errors import InvalidTransition
from .django_outbox import setting


class InstantField(models.DateTimeField):
    """A field for aware UTC datetimes, regardless of USE_TZ. On SQLite, outboxq stores and compares datetimes as ISO
    strings.
    """

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if isinstance(value, str):  # from a fixture or a serialized test database, in a composite primary key
            value = self.to_python(value)
        if connection.vendor != "sqlite" or not isinstance(value, datetime):
            return super().get_db_prep_value(value, connection, prepared)
        return iso(_aware(value, connection))

    def from_db_value(self, value: Any, _expression: Any, connection: Any) -> Any:
        return _aware(value, connection).astimezone(UTC) if isinstance(value, datetime) else value


def _aware(value: datetime, connection: Any) -> datetime:
    """Return an aware datetime. With USE_TZ = False, naive datetimes are in the connection's time zone."""
    return value if value.tzinfo is not None else value.replace(tzinfo=ZoneInfo(connection.timezone_name))


def table(name: str) -> str:
    """Return the name for `db_table`. If there is a schema, the name includes the quotes between schema and table."""
    schema = setting("SCHEMA")
    return name if schema is None else f'{schema}"."{name}'


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
        f"{model._meta.label} is read-only; change tasks through outboxes[alias].store, which keeps the outbox, events and "  # noqa: SLF001 - Django's public name for it
        "leases consistent"
    )


_FIELDS: dict[type, Any] = {
    BigInteger: models.BigIntegerField,
    Boolean: models.BooleanField,
    Double: models.FloatField,
    Enum: models.TextField,
    Integer: models.IntegerField,
    SmallInteger: models.SmallIntegerField,
    Text: models.TextField,
    UtcDateTime: InstantField,
    Uuid: models.UUIDField,
}
"""The field class for each column type. Columns of other types exist only on PostgreSQL and have no field."""


def _derived(
    name: str, source: Table, *permissions: str, text: Callable[[Any], str] = lambda row: str(row.pk), **options: Any
) -> Any:
    """Return a model with the columns of this table. `text` is the model's `__str__`, and `options` are the options of
    the model's Meta.
    """
    key = [column.name for column in source.primary_key]
    unique = [one.columns.keys() for one in source.constraints if isinstance(one, UniqueConstraint)]
    fields: dict[str, Any] = {"pk": models.CompositePrimaryKey(*key)} if len(key) > 1 else {}
    for column in source.columns:
        if column.identity is not None:
            fields[column.name] = models.BigAutoField(primary_key=True)
        elif (kind := _FIELDS.get(type(column.type))) is not None:
            choices = [(one, one) for one in column.type.enums] if isinstance(column.type, Enum) else None
            fields[column.name] = kind(
                primary_key=key == [column.name],
                unique=[column.name] in unique,
                null=column.nullable,
                choices=choices,
            )
    meta = {"db_table": table(source.name), "default_permissions": permissions, **options}
    words = {"__module__": __name__, "__doc__": f"A row of `{source.name}`.", "__str__": text}
    return type(name, (ReadOnlyModel,), {**words, "Meta": type("Meta", (), meta), **fields})


TaskExecution = _derived(
    "TaskExecution",
    tables.task_executions,
    "view",
    text=lambda row: f"{row.task_name} {row.id}",
    permissions=tuple(
        (f"{verb}_taskexecution", f"Can {verb} task executions") for verb in ("retry", "cancel", "discard", "enqueue")
    ),
)
OutboxEntry = _derived("OutboxEntry", tables.task_outbox, "view", verbose_name_plural="outbox entries")
ExecutionEvent = _derived("ExecutionEvent", tables.execution_events, "view")
QueueSettings = _derived("QueueSettings", tables.queue_settings, "view", "change", verbose_name_plural="queue settings")
DeadLetter = _derived("DeadLetter", tables.dead_letters, "view")
LiveWorker = _derived("LiveWorker", tables.workers, "view", "change", text=lambda row: str(row.label))
Batch = _derived("Batch", tables.task_batches, "view", verbose_name_plural="batches")
BatchChange = _derived("BatchChange", tables.task_batch_changes)
IdempotencyKey = _derived("IdempotencyKey", tables.idempotency_keys)
InboxMessage = _derived("InboxMessage", tables.inbox_messages)
KeyRate = _derived("KeyRate", tables.key_rates)
MaintenanceJob = _derived("MaintenanceJob", tables.maintenance_jobs)
OperatorAction = _derived(
    "OperatorAction", tables.operator_actions, "view", text=lambda row: f"{row.action} {row.target or ''}".rstrip()
)
PartitionClaim = _derived("PartitionClaim", tables.partition_claims)
QueueSample = _derived("QueueSample", tables.queue_samples)
Relay = _derived("Relay", tables.relays, "view", "change")
RelayMessage = _derived("RelayMessage", tables.relay_messages)
RelayShard = _derived("RelayShard", tables.relay_shards)
ScheduleTick = _derived("ScheduleTick", tables.schedule_ticks)
SleepingWorker = _derived("SleepingWorker", tables.sleeping_workers)
TaskLease = _derived("TaskLease", tables.task_leases)
TaskMetric = _derived("TaskMetric", tables.task_metrics)
TaskSchedule = _derived("TaskSchedule", tables.task_schedules, "view", "change")
TaskStep = _derived("TaskStep", tables.task_steps)
TaskSubscription = _derived("TaskSubscription", tables.task_subscriptions)
