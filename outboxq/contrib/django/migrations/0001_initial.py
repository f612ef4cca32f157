"""Create outboxq's tables at revision 0001.

The models in Django's migration state are those of the installed release. They are derived from the tables, which only
outboxq's own revisions change. A later migration therefore only names the revision that it reaches, and contains no
state.
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
