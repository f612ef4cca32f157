"""The tables of the limits per key, outboxq's revision 0009."""

from __future__ import annotations

from django.db import migrations, models

from ..fields import InstantField, table
from ..operations import reaching

MODELS = [
    migrations.CreateModel(
        name="KeyLimit",
        fields=[
            ("queue", models.TextField(primary_key=True, serialize=False)),
            ("concurrency_limit", models.IntegerField(null=True)),
            ("key_concurrency", models.IntegerField(null=True)),
            ("key_rate_limit", models.IntegerField(null=True)),
            ("key_rate_seconds", models.FloatField(null=True)),
        ],
        options={"db_table": table("key_limits"), "default_permissions": ()},
    ),
    migrations.CreateModel(
        name="KeyRate",
        fields=[
            ("pk", models.CompositePrimaryKey("queue", "partition_key", serialize=False)),
            ("queue", models.TextField()),
            ("partition_key", models.TextField()),
            ("full_at", InstantField()),
        ],
        options={"db_table": table("key_rates"), "default_permissions": ()},
    ),
]


class Migration(migrations.Migration):
    dependencies = [("outboxq", "0008_progress")]  # noqa: RUF012
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(
            database_operations=[reaching("0009", before="0008")], state_operations=MODELS
        )
    ]
