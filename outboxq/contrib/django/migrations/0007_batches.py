"""Batches and chains, outboxq's revision 0007."""

from __future__ import annotations

from django.db import migrations, models

from ..fields import InstantField, table
from ..operations import reaching

MODELS = [
    migrations.CreateModel(
        name="Batch",
        fields=[
            ("id", models.UUIDField(primary_key=True, serialize=False)),
            ("kind", models.TextField()),
            ("name", models.TextField(null=True)),
            ("on_failed", models.TextField()),
            ("size", models.IntegerField()),
            ("completed", models.IntegerField()),
            ("failed", models.IntegerField()),
            ("cancelled", models.IntegerField()),
            ("closed", models.BooleanField()),
            ("then_tasks", models.TextField(null=True)),
            ("stage", models.IntegerField()),
            ("runs_then", models.BooleanField()),
            ("cancel_requested_at", InstantField(null=True)),
            ("created_at", InstantField()),
            ("updated_at", InstantField()),
            ("completed_at", InstantField(null=True)),
        ],
        options={"db_table": table("task_batches"), "default_permissions": ("view",), "verbose_name_plural": "batches"},
    ),
    migrations.CreateModel(
        name="BatchChange",
        fields=[
            ("id", models.BigAutoField(primary_key=True, serialize=False)),
            ("batch_id", models.UUIDField()),
            *((name, models.IntegerField()) for name in ("added", "completed", "failed", "cancelled")),
            ("closes", models.BooleanField()),
            ("changed_at", InstantField()),
        ],
        options={"db_table": table("task_batch_changes"), "default_permissions": ()},
    ),
]


class Migration(migrations.Migration):
    dependencies = [("outboxq", "0006_steps")]  # noqa: RUF012
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(
            database_operations=[reaching("0007", before="0006")], state_operations=MODELS
        )
    ]
