"""Decide which schemas this code runs on, and which code a schema supports, because different releases run at the same
time during a rollout.

Either the code or the schema may be newer. `OLDEST_SCHEMA` is the oldest schema that this code runs on. The schema's
version table names the oldest code that the schema supports (`oldest_code`): the lowest `REVISION` that a release must
know.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

from ..errors import ConfigurationError, SchemaOutOfDate

REVISION = "0001"
"""The newest schema that this code knows; `outboxq upgrade` creates it."""

OLDEST_SCHEMA = "0001"
"""The oldest schema that this code runs on. When the code needs a newer schema, this number is raised one release after
the release that introduced that schema.
"""

UPGRADE = "run: outboxq upgrade, with your application (module:outbox) or --url"
"""The remedy for missing or old tables if it is not known how this process was started."""


def script_location() -> Path:
    """Return the folder that contains the scripts: inside the package in a wheel, at the top level in a checkout."""
    package = Path(__file__).parents[1]
    packaged = package / "_migrations" / "alembic"
    return packaged if packaged.is_dir() else package.parent / "alembic"


@cache
def fingerprint() -> str:
    """Return the digest of revision 0001's text. It is stored in the database, so that tables created from an
    unreleased version of that text are recognized. Until the first release, that revision is changed in place.

    Raises ConfigurationError if the installation does not contain the migrations.
    """
    script = script_location() / "versions" / "0001_tables.py"
    try:
        text = script.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"outboxq's migrations cannot be read ({error}); reinstall outboxq, or add the folder {script.parents[1]} to your bundle"
        ) from error
    return sha256(text.encode()).hexdigest()[:12]


def is_newer(schema: str | None) -> bool:
    """Return True if a later release created this schema. Revisions have four digits, so they can be compared as
    strings.
    """
    return schema is not None and schema > REVISION


def ensure_released(stored: str | None, place: Callable[[], str]) -> None:
    """Raise SchemaOutOfDate if the tables were created by a different version of revision 0001, from which no migration
    can continue.

    `stored` is the fingerprint in the tables; None if the tables do not have one.
    """
    if stored != fingerprint():
        raise SchemaOutOfDate(
            f"{place()} has outboxq tables from an unreleased version, which cannot be upgraded; delete them or use an "
            "empty database, then run outboxq upgrade"
        )


def ensure_fit(schema: str | None, oldest_code: str | None, place: Callable[[], str]) -> None:
    """Raise SchemaOutOfDate unless this code can work with this schema. The schema supports `oldest_code` and later
    code.

    `schema` is None if there are no tables. `place` returns the database's name for the error.
    """
    if schema is None:
        raise SchemaOutOfDate(f"{place()} has no outboxq tables; this release needs {REVISION}", remedy=UPGRADE)
    if schema < OLDEST_SCHEMA:
        raise SchemaOutOfDate(
            f"{place()} has the outboxq schema {schema}; this release needs {OLDEST_SCHEMA} or later", remedy=UPGRADE
        )
    if is_newer(schema) and (oldest_code is None or oldest_code > REVISION):
        raise SchemaOutOfDate(
            f"{place()} has the outboxq schema {schema}, which supports only releases that know schema {oldest_code or schema} or later; "
            f"this release knows schema {REVISION}",
            remedy="run: pip install --upgrade outboxq",
            code_is_older=True,
        )


def no_file(path: str) -> SchemaOutOfDate:
    """Return the error for a SQLite file that does not exist, and so has no tables."""
    return SchemaOutOfDate(f"there is no SQLite file {path}, and none was created", remedy=UPGRADE)


def ensure_ours(schema: str | None, place: Callable[[], str]) -> None:
    """Raise SchemaOutOfDate if a later release created the schema, because only that release can downgrade it."""
    if is_newer(schema):
        raise SchemaOutOfDate(
            f"{place()} has the outboxq schema {schema}, which this release ({REVISION}) does not know and so cannot downgrade; "
            "downgrade with the release that created it",
            code_is_older=True,
        )


def left_alone(schema: str | None) -> str:
    """Return the message for an upgrade that found this newer schema."""
    return f"the schema {schema} was created by a later release but also works with this one, which knows {REVISION}; nothing was changed"
