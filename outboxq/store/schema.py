"""Check that a store's tables exist and fit this code, and explain errors due to missing tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import sqlalchemy as sa

from ..database.grammar import Builder, Grammar
from ..database.revisions import ensure_fit, ensure_released
from ..database.tables import VERSION_TABLE, version_table
from ..database.target import Target
from ..errors import SchemaOutOfDate

log = logging.getLogger("outboxq.store")


def check_fit(target: Target, url: sa.URL | None) -> None:
    """Raise SchemaOutOfDate unless the tables exist and fit this code. `url` names the database in the error."""
    target.ensure_readable()
    place = partial(target.dialect.place, url, target.database)
    revision, oldest_code = found(target.run, place)
    ensure_fit(revision, oldest_code, place)


def explain_undefined(target: Target, error: Exception, check: Callable[[Target], None]) -> None:
    """Raise SchemaOutOfDate if the database does not recognize a name in a statement because of the state of our
    tables.

    `error` has ended the transaction of `target`. That transaction is our own, and is rolled back. `check` raises
    SchemaOutOfDate unless the tables fit. It is called only after such an error, so that successful transactions do not
    need an extra round trip.
    """
    if not target.dialect.is_undefined(error):
        return
    try:
        check(target)
    except SchemaOutOfDate as reason:
        raise reason from None
    except Exception as unanswered:
        # The original error is more helpful.
        log.debug("the version of the tables could not be read", exc_info=unanswered)


@contextmanager
def in_a_transaction_that_goes_on() -> Iterator[None]:
    """Note in a SchemaOutOfDate error that the caller's transaction is still usable."""
    try:
        yield
    except SchemaOutOfDate as error:
        error.add_note("outboxq wrote nothing, and your transaction is still open: commit it or roll it back")
        raise


def found(run: Callable[[Builder], list[dict[str, Any]]], place: Callable[[], str]) -> tuple[str | None, str | None]:
    """Return the revision of the tables and the oldest code that they support; (None, None) if there are no tables.

    Columns are looked up before they are read, because an error would abort the caller's transaction. Raises
    SchemaOutOfDate for tables from an unreleased version. `place` returns the database's name for the error.
    """
    columns = {row["name"] for row in run(version_columns)}
    if version_table.c.oldest_code.name not in columns:  # so far, Alembic has created only the table
        return None, None
    if version_table.c.fingerprint.name not in columns:
        ensure_released(None, place)
    if not (rows := run(version)):
        return None, None
    ensure_released(rows[0]["fingerprint"], place)
    return rows[0]["version_num"], rows[0]["oldest_code"]


def version(_: Grammar) -> sa.Select[Any]:
    """Select the revision of our schema, the oldest code that it supports, and the fingerprint of revision 0001's text."""
    return sa.select(version_table)


def version_columns(g: Grammar) -> sa.Select[Any]:
    """Select the version table's column names."""
    return g.columns_of(VERSION_TABLE)


def is_standby(g: Grammar) -> sa.Select[Any]:
    """Select one row if this server is a standby, which does not accept writes."""
    return g.is_standby()
