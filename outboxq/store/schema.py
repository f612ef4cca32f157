"""The tables of a store: whether they are there and fit this code, and what an error of missing tables means."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from sqlalchemy import URL

from ..database.revisions import ensure_fit
from ..database.statements import schema
from ..database.target import Target
from ..errors import SchemaOutOfDate

log = logging.getLogger("outboxq.store")


def check_fit(target: Target, url: URL | None) -> None:
    """Raise SchemaOutOfDate unless the tables are there and fit this code. `url`: the database's, for the error."""
    target.ensure_readable()
    place = partial(target.dialect.place, url, target.database)
    revision, oldest_code = schema.found(target.run, place)
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
