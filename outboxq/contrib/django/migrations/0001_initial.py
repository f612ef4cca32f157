"""outboxq's tables of revision 0001.

Django gets the models of the installed release. They follow from the tables, which only outboxq's own revisions change.
So a later migration only names the revision that it reaches, and does not contain any state.
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
