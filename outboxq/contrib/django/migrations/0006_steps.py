"""The table of durable steps, outboxq's revision 0006."""

from __future__ import annotations

from django.db import migrations, models

from ..fields import InstantField, table
from ..operations import reaching

MODELS = [
    migrations.CreateModel(
        name="TaskStep",
        fields=[
            ("pk", models.CompositePrimaryKey("task_execution_id", "name", serialize=False)),
            ("task_execution_id", models.UUIDField()),
            ("name", models.TextField()),
            ("number", models.IntegerField()),
            ("lease_token", models.BigIntegerField()),
            ("result", models.TextField(null=True)),
            ("due_at", InstantField(null=True)),
            ("created_at", InstantField()),
        ],
        options={"db_table": table("task_steps"), "default_permissions": ()},
    ),
]


class Migration(migrations.Migration):
    dependencies = [("outboxq", "0005_workers")]  # noqa: RUF012
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(
            database_operations=[reaching("0006", before="0005")], state_operations=MODELS
        )
    ]
