"""Which schemas this code runs on, and which code a schema admits: releases differ while the new one is rolled out.

Either side may be the newer one. Code says the oldest schema that it runs on (`OLDEST_SCHEMA`). A schema says, in its version
table, the oldest code that it admits (`oldest_code`): the least `REVISION` that a release must know.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import SchemaOutOfDate

REVISION = "0001"
"""The newest schema that this code knows; `outboxq upgrade` makes it."""

OLDEST_SCHEMA = "0001"
"""The oldest schema that this code runs on. It is raised in the release after the one that brought what the code now needs."""

UPGRADE = "run: outboxq upgrade, with your application (module:outbox) or --url"
"""What to do about tables that are missing or too old, where it is not known how this process was started."""


def is_newer(schema: str | None) -> bool:
    """Return whether a later release made this schema. Revisions are four digits, so their order is that of their text."""
    return schema is not None and schema > REVISION


def ensure_fit(schema: str | None, oldest_code: str | None, place: Callable[[], str]) -> None:
    """Raise SchemaOutOfDate unless this code may work on a database with this schema, which admits code from `oldest_code` on.

    `schema` None: there are no tables. `place` returns how the database is called in a sentence.
    """
    if schema is None:
        raise SchemaOutOfDate(f"{place()} has no outboxq tables; this release needs {REVISION}", remedy=UPGRADE)
    if schema < OLDEST_SCHEMA:
        raise SchemaOutOfDate(
            f"{place()} has the outboxq schema {schema}; this release needs {OLDEST_SCHEMA} or later", remedy=UPGRADE
        )
    if is_newer(schema) and (oldest_code is None or oldest_code > REVISION):
        raise SchemaOutOfDate(
            f"{place()} has the outboxq schema {schema}, which admits releases that know {oldest_code or schema} or later; "
            f"this release knows {REVISION}",
            remedy="run: pip install --upgrade outboxq",
            code_is_older=True,
        )


def no_file(path: str) -> SchemaOutOfDate:
    """Return the error for an SQLite file that is not there, and so has no tables."""
    return SchemaOutOfDate(f"there is no SQLite file {path}, and none was made", remedy=UPGRADE)


def ensure_ours(schema: str | None, place: Callable[[], str]) -> None:
    """Raise SchemaOutOfDate where a later release made the schema: only that one knows how to take it back."""
    if is_newer(schema):
        raise SchemaOutOfDate(
            f"{place()} has the outboxq schema {schema}, which this release ({REVISION}) does not know and so cannot take "
            "back; do it with the release that made it",
            code_is_older=True,
        )


def left_alone(schema: str | None) -> str:
    """Return what an upgrade has to say that found this newer schema."""
    return (
        f"the schema is {schema}, of a later release, and admits this one, which knows {REVISION}: nothing was changed"
    )
