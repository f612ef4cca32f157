"""The tables of a store: whether they are there and fit this code, and what an error of missing tables means."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from sqlalchemy import URL, Select, select

from ..database.grammar import Builder, Grammar
from ..database.revisions import ensure_fit, ensure_released
from ..database.tables import VERSION_TABLE, version_table
from ..database.target import Target
from ..errors import SchemaOutOfDate

log = logging.getLogger("outboxq.store")


def check_fit(target: Target, url: URL | None) -> None:
    """Raise SchemaOutOfDate unless the tables are there and fit this code. `url`: the database's, for the error."""
    target.ensure_readable()
    place = partial(target.dialect.place, url, target.database)
    revision, oldest_code = found(target.run, place)
    ensure_fit(revision, oldest_code, place)


def explain_undefined(target: Target, error: Exception, check: Callable[[Target], None]) -> None:
    """Raise SchemaOutOfDate where our tables are why the database does not know what a statement names.

    `error` ended the transaction of `target`, which is ours and rolled back. `check` raises SchemaOutOfDate unless the tables
    fit; it is called for such errors only, so that what works costs no round trip more.
    """
    if not target.dialect.is_undefined(error):
        return
    try:
        check(target)
    except SchemaOutOfDate as reason:
        raise reason from None
    except Exception as unanswered:
        # The first error says more.
        log.debug("the version of the tables could not be read", exc_info=unanswered)


@contextmanager
def in_a_transaction_that_goes_on() -> Iterator[None]:
    """Note in a SchemaOutOfDate from inside what becomes of the caller's transaction."""
    try:
        yield
    except SchemaOutOfDate as error:
        error.add_note("outboxq wrote nothing, and your transaction goes on: commit it or roll it back as you like")
        raise


def found(run: Callable[[Builder], list[dict[str, Any]]], place: Callable[[], str]) -> tuple[str | None, str | None]:
    """Return the revision of the tables and the oldest code that they admit; twice None if there are no tables.

    Columns are looked up before they are read: an error would abort the caller's transaction. Raises SchemaOutOfDate for the
    tables of an unreleased version. `place` returns the name of the database for it.
    """
    columns = {row["name"] for row in run(version_columns)}
    if version_table.c.oldest_code.name not in columns:  # Alembic alone has made the table
        return None, None
    if version_table.c.fingerprint.name not in columns:
        ensure_released(None, place)
    if not (rows := run(version)):
        return None, None
    ensure_released(rows[0]["fingerprint"], place)
    return rows[0]["version_num"], rows[0]["oldest_code"]


def version(_: Grammar) -> Select[Any]:
    """Select the revision of our schema, the oldest code that it admits, and the text of revision 0001 that made it."""
    return select(version_table)


def version_columns(g: Grammar) -> Select[Any]:
    """Select the names of the columns that the table of our revision has."""
    return g.columns_of(VERSION_TABLE)


def is_standby(g: Grammar) -> Select[Any]:
    """Select one row if this server is a standby, and takes no writes."""
    return g.is_standby()
