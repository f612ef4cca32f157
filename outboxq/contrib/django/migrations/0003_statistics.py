"""The tables of statistics, outboxq's revision 0003."""

from __future__ import annotations

from django.db import migrations, models

from ..fields import InstantField, table
from ..operations import reaching

MODELS = [
    migrations.CreateModel(
        name="TaskMetric",
        fields=[
            ("id", models.UUIDField(primary_key=True, serialize=False)),
            ("at", InstantField()),
            ("seconds", models.IntegerField()),
            ("queue", models.TextField()),
            ("task_name", models.TextField()),
            ("worker_id", models.UUIDField(null=True)),
            ("completed", models.IntegerField()),
            ("retried", models.IntegerField()),
            ("failed", models.IntegerField()),
            ("cancelled", models.IntegerField()),
            ("snoozed", models.IntegerField()),
            ("released", models.IntegerField()),
            ("lost", models.IntegerField()),
            ("timed_out", models.IntegerField()),
            ("timed_out_last", models.IntegerField()),
            ("wait_seconds", models.FloatField()),
            ("run_seconds", models.FloatField()),
            *((f"{name}_{bucket}", models.IntegerField()) for name in ("wait", "run") for bucket in range(23)),
        ],
        options={"db_table": table("task_metrics"), "default_permissions": ()},
    ),
    migrations.CreateModel(
        name="QueueSample",
        fields=[
            ("pk", models.CompositePrimaryKey("at", "queue", serialize=False)),
            ("at", InstantField()),
            ("queue", models.TextField()),
            ("ready", models.BigIntegerField()),
            ("delayed", models.BigIntegerField()),
            ("running", models.BigIntegerField()),
            ("failed", models.BigIntegerField()),
            ("oldest_ready_at", InstantField(null=True)),
            ("exact", models.BooleanField()),
        ],
        options={"db_table": table("queue_samples"), "default_permissions": ()},
    ),
    migrations.CreateModel(
        name="MaintenanceJob",
        fields=[
            ("name", models.TextField(primary_key=True, serialize=False)),
            ("due_at", InstantField()),
            ("done_at", InstantField(null=True)),
        ],
        options={"db_table": table("maintenance_jobs"), "default_permissions": ()},
    ),
]


class Migration(migrations.Migration):
    dependencies = [("outboxq", "0002_schedules")]  # noqa: RUF012
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(
            database_operations=[reaching("0003", before="0002")], state_operations=MODELS
        )
    ]
