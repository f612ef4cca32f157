"""A column of `workers`, outboxq's revision 0010."""

from __future__ import annotations

from django.db import migrations, models

from ..operations import reaching


class Migration(migrations.Migration):
    dependencies = [("outboxq", "0009_key_limits")]  # noqa: RUF012
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(
            database_operations=[reaching("0010", before="0009")],
            state_operations=[
                migrations.AddField(model_name="liveworker", name="isolation", field=models.TextField(null=True)),
            ],
        )
    ]
