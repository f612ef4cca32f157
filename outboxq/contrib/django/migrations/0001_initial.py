"""outboxq's tables of revision 0001.

Django is told of the models as the installed release has them. They follow from the tables, and nothing but outboxq's own revisions
changes those: so a later migration only names the revision that it reaches, and has no state of its own.
"""

from __future__ import annotations

from django.db import migrations
from django.db.migrations.state import ModelState

from ..models import ReadOnlyModel
from ..operations import reaching

MODELS = [
    migrations.CreateModel(state.name, list(state.fields.items()), state.options, state.bases)
    for state in map(ModelState.from_model, ReadOnlyModel.__subclasses__())
]


class Migration(migrations.Migration):
    initial = True
    dependencies: list[tuple[str, str]] = []  # noqa: RUF012
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(
            database_operations=[reaching("0001", before="base")], state_operations=MODELS
        )
    ]
