"""Columns of `workers`, outboxq's revision 0005."""

from __future__ import annotations

from django.db import migrations, models

from ..operations import reaching


class Migration(migrations.Migration):
    dependencies = [("outboxq", "0004_headers")]  # noqa: RUF012
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(
            database_operations=[reaching("0005", before="0004")],
            state_operations=[
                migrations.AddField(model_name="liveworker", name=name, field=field)
                for name, field in (
                    ("host", models.TextField(null=True)),
                    ("pid", models.IntegerField(null=True)),
                    ("version", models.TextField(null=True)),
                    ("release", models.TextField(null=True)),
                    ("busy", models.IntegerField(null=True)),
                )
            ],
        )
    ]
