"""The only revision before the first release, and the constants in the code that describe it."""

from __future__ import annotations

from hashlib import sha256

from outboxq import migrations
from outboxq.database.revisions import FINGERPRINT, OLDEST_SCHEMA, REVISION


def test_the_fingerprint_matches_the_text_of_the_first_revision():
    """After a change to 0001, existing databases must be created again: copy the new digest to FINGERPRINT."""
    (script,) = (migrations.script_location() / "versions").glob("0001_*.py")
    assert sha256(script.read_bytes()).hexdigest()[:12] == FINGERPRINT


def test_there_is_one_revision_until_the_first_release():
    assert [revision for revision, _ in migrations.revisions()] == [OLDEST_SCHEMA] == [REVISION]
