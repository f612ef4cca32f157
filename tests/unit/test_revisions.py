"""The only revision before the first release, and the constants in the code that describe it."""

from __future__ import annotations

import pytest

from outboxq import migrations
from outboxq.database import revisions
from outboxq.database.revisions import OLDEST_SCHEMA, REVISION
from outboxq.errors import ConfigurationError


def test_an_installation_without_its_migrations_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(revisions, "script_location", lambda: tmp_path / "alembic")
    with pytest.raises(ConfigurationError, match=r"migrations cannot be read .*0001_tables\.py.*reinstall outboxq"):
        revisions.fingerprint.__wrapped__()


def test_there_is_one_revision_until_the_first_release():
    assert [revision for revision, _ in migrations.revisions()] == [OLDEST_SCHEMA] == [REVISION]
