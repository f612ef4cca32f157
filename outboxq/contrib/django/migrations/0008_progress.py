"""Columns of `task_leases`, outboxq's revision 0008."""

from __future__ import annotations

from django.db import migrations, models

from ..operations import reaching


class Migration(migrations.Migration):
    dependencies = [("outboxq", "0007_batches")]  # noqa: RUF012
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(
            database_operations=[reaching("0008", before="0007")],
            state_operations=[
                migrations.AddField(model_name="tasklease", name="progress", field=models.FloatField(null=True)),
                migrations.AddField(model_name="tasklease", name="progress_note", field=models.TextField(null=True)),
            ],
        )
    ]
