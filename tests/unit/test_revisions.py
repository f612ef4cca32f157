"""The only revision before the first release, and the constants in the code that describe it."""

from __future__ import annotations

from outboxq import migrations
from outboxq.database.revisions import OLDEST_SCHEMA, REVISION


def test_there_is_one_revision_until_the_first_release():
    assert [revision for revision, _ in migrations.revisions()] == [OLDEST_SCHEMA] == [REVISION]
