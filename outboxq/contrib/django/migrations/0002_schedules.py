"""The tables of schedules and their ticks, outboxq's revision 0002."""

from __future__ import annotations

from django.db import migrations, models

from ..fields import InstantField, table
from ..operations import reaching

MODELS = [
    migrations.CreateModel(
        name="TaskSchedule",
        fields=[
            ("name", models.TextField(primary_key=True, serialize=False)),
            ("task_name", models.TextField()),
            ("args", models.TextField()),
            ("queue", models.TextField()),
            ("priority", models.SmallIntegerField()),
            ("max_attempts", models.IntegerField(null=True)),
            ("lease_seconds", models.FloatField()),
            ("timeout_seconds", models.FloatField(null=True)),
            ("on_dead_letter", models.TextField()),
            ("rule", models.TextField()),
            ("tz", models.TextField()),
            ("overlap", models.TextField()),
            ("catch_up", models.TextField()),
            ("catch_up_limit", models.IntegerField()),
            ("grace_seconds", models.FloatField(null=True)),
            ("jitter_seconds", models.FloatField(null=True)),
            ("starts_at", InstantField()),
            ("ends_at", InstantField(null=True)),
            ("declared_by", models.TextField(null=True)),
            ("declaration", models.TextField(null=True)),
            ("planted_until", InstantField()),
            ("paused_at", InstantField(null=True)),
            ("pause_reason", models.TextField(null=True)),
            ("created_at", InstantField()),
            ("updated_at", InstantField()),
        ],
        options={"db_table": table("task_schedules"), "default_permissions": ("view", "change")},
    ),
    migrations.CreateModel(
        name="ScheduleTick",
        fields=[
            ("pk", models.CompositePrimaryKey("schedule", "tick", serialize=False)),
            ("schedule", models.TextField()),
            ("tick", InstantField()),
            ("task_execution_id", models.UUIDField()),
        ],
        options={"db_table": table("schedule_ticks"), "default_permissions": ()},
    ),
]


class Migration(migrations.Migration):
    dependencies = [("outboxq", "0001_initial")]  # noqa: RUF012
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(
            database_operations=[reaching("0002", before="0001")], state_operations=MODELS
        )
    ]
