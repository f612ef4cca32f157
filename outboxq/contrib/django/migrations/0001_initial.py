"""outboxq's tables of revision 0001."""

from __future__ import annotations

from django.db import migrations, models

from ..fields import InstantField, table
from ..operations import reaching

MODELS = [
    migrations.CreateModel(
        name="DeadLetter",
        fields=[
            ("task_execution_id", models.UUIDField(primary_key=True, serialize=False)),
            ("queue", models.TextField()),
            ("task_name", models.TextField()),
            ("topic", models.TextField(null=True)),
            ("partition_key", models.TextField(null=True)),
            ("exception", models.TextField(null=True)),
            ("failed_at", InstantField()),
            ("lost_key", models.TextField(null=True)),
        ],
        options={"db_table": table("dead_letters"), "default_permissions": ("view",)},
    ),
    migrations.CreateModel(
        name="ExecutionEvent",
        fields=[
            ("sequence_num", models.BigAutoField(primary_key=True, serialize=False)),
            ("pipeline_execution_id", models.UUIDField()),
            ("task_execution_id", models.UUIDField(null=True)),
            ("event_type", models.TextField()),
            ("event_data", models.TextField(null=True)),
            ("worker_id", models.UUIDField(null=True)),
            ("lease_token", models.BigIntegerField(null=True)),
            ("created_at", InstantField()),
        ],
        options={"db_table": table("execution_events"), "default_permissions": ("view",)},
    ),
    migrations.CreateModel(
        name="IdempotencyKey",
        fields=[
            ("pk", models.CompositePrimaryKey("scope", "key", serialize=False)),
            ("scope", models.TextField()),
            ("key", models.TextField()),
            ("task_execution_id", models.UUIDField()),
            ("expires_at", InstantField(null=True)),
            ("until_finished", models.BooleanField()),
            ("created_at", InstantField()),
        ],
        options={"db_table": table("idempotency_keys"), "default_permissions": ()},
    ),
    migrations.CreateModel(
        name="LiveWorker",
        fields=[
            ("id", models.UUIDField(primary_key=True, serialize=False)),
            ("label", models.TextField()),
            ("queues", models.TextField(null=True)),
            ("topics", models.TextField(null=True)),
            ("concurrency", models.IntegerField()),
            ("task_names", models.TextField()),
            ("unknown_tasks", models.TextField(null=True)),
            ("started_at", InstantField()),
            ("last_seen_at", InstantField()),
        ],
        options={"db_table": table("workers"), "default_permissions": ("view",)},
    ),
    migrations.CreateModel(
        name="OutboxEntry",
        fields=[
            ("id", models.BigAutoField(primary_key=True, serialize=False)),
            ("task_execution_id", models.UUIDField(unique=True)),
            ("queue", models.TextField()),
            ("priority", models.SmallIntegerField()),
            ("partition_key", models.TextField(null=True)),
            ("position", models.BigIntegerField()),
            ("topic", models.TextField(null=True)),
            ("available_at", InstantField()),
            ("expires_at", InstantField(null=True)),
            ("created_at", InstantField()),
        ],
        options={
            "verbose_name_plural": "outbox entries",
            "db_table": table("task_outbox"),
            "default_permissions": ("view",),
        },
    ),
    migrations.CreateModel(
        name="PartitionClaim",
        fields=[
            ("pk", models.CompositePrimaryKey("queue", "partition_key", serialize=False)),
            ("queue", models.TextField()),
            ("partition_key", models.TextField()),
            ("task_execution_id", models.UUIDField(unique=True)),
            ("held", models.BooleanField()),
        ],
        options={"db_table": table("partition_claims"), "default_permissions": ()},
    ),
    migrations.CreateModel(
        name="QueueSettings",
        fields=[
            ("queue", models.TextField(primary_key=True, serialize=False)),
            ("paused_at", InstantField(null=True)),
            ("concurrency_limit", models.IntegerField(null=True)),
            ("rate_limit", models.IntegerField(null=True)),
            ("rate_seconds", models.FloatField(null=True)),
            ("rate_full_at", InstantField(null=True)),
            ("fair", models.BooleanField()),
            ("updated_at", InstantField()),
        ],
        options={
            "verbose_name_plural": "queue settings",
            "db_table": table("queue_settings"),
            "default_permissions": ("view", "change"),
        },
    ),
    migrations.CreateModel(
        name="SleepingWorker",
        fields=[
            ("pk", models.CompositePrimaryKey("worker_id", "queue", serialize=False)),
            ("worker_id", models.UUIDField()),
            ("queue", models.TextField()),
            ("wakes_at", InstantField()),
        ],
        options={"db_table": table("sleeping_workers"), "default_permissions": ()},
    ),
    migrations.CreateModel(
        name="TaskExecution",
        fields=[
            ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
            ("pipeline_execution_id", models.UUIDField()),
            ("task_name", models.TextField()),
            ("queue", models.TextField()),
            ("topic", models.TextField(null=True)),
            ("partition_key", models.TextField(null=True)),
            ("position", models.BigIntegerField()),
            ("priority", models.SmallIntegerField()),
            ("args", models.TextField()),
            ("headers", models.TextField(null=True)),
            (
                "status",
                models.TextField(
                    choices=[(one, one) for one in ("Ready", "Running", "Completed", "Failed", "Cancelled")]
                ),
            ),
            ("attempt", models.IntegerField()),
            ("max_attempts", models.IntegerField(null=True)),
            ("recovery_attempts", models.IntegerField()),
            ("lease_seconds", models.FloatField()),
            ("timeout_seconds", models.FloatField(null=True)),
            ("lease_token", models.BigIntegerField()),
            ("worker_id", models.UUIDField(null=True)),
            ("cancel_requested_at", InstantField(null=True)),
            ("on_dead_letter", models.TextField()),
            ("expires_at", InstantField(null=True)),
            ("retry_at", InstantField(null=True)),
            ("first_started_at", InstantField(null=True)),
            ("started_at", InstantField(null=True)),
            ("completed_at", InstantField(null=True)),
            ("created_at", InstantField()),
            ("updated_at", InstantField()),
            ("last_error", models.TextField(null=True)),
            ("result", models.TextField(null=True)),
        ],
        options={
            "db_table": table("task_executions"),
            "permissions": (
                ("retry_taskexecution", "Can retry task executions"),
                ("cancel_taskexecution", "Can cancel task executions"),
                ("discard_taskexecution", "Can discard task executions"),
            ),
            "default_permissions": ("view",),
        },
    ),
    migrations.CreateModel(
        name="TaskLease",
        fields=[
            ("task_execution_id", models.UUIDField(primary_key=True, serialize=False)),
            ("queue", models.TextField()),
            ("lease_token", models.BigIntegerField()),
            ("worker_id", models.UUIDField()),
            ("lease_expires_at", InstantField()),
            ("begun", models.BooleanField(null=True)),
        ],
        options={"db_table": table("task_leases"), "default_permissions": ()},
    ),
    migrations.CreateModel(
        name="TaskSubscription",
        fields=[
            ("pk", models.CompositePrimaryKey("topic", "task_name", serialize=False)),
            ("topic", models.TextField()),
            ("task_name", models.TextField()),
            ("parameter", models.TextField()),
            ("queue", models.TextField()),
            ("priority", models.SmallIntegerField()),
            ("max_attempts", models.IntegerField(null=True)),
            ("lease_seconds", models.FloatField()),
            ("timeout_seconds", models.FloatField(null=True)),
            ("on_dead_letter", models.TextField()),
        ],
        options={"db_table": table("task_subscriptions"), "default_permissions": ()},
    ),
]


class Migration(migrations.Migration):
    initial = True
    dependencies: list[tuple[str, str]] = []  # noqa: RUF012
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(
            database_operations=[reaching("0001", before="base")], state_operations=MODELS
        )
    ]
