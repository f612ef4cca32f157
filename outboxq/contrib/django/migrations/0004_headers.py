"""Headers in the SQL function, outboxq's revision 0004."""

from __future__ import annotations

from django.db import migrations

from ..operations import reaching


class Migration(migrations.Migration):
    dependencies = [("outboxq", "0003_statistics")]  # noqa: RUF012
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(database_operations=[reaching("0004", before="0003")])
    ]
