"""PostgreSQL's errors, classified by their remedy."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.errors import ConfigurationLimitExceeded, ConnectionTimeout, DiskFull
from sqlalchemy.exc import DBAPIError

from outboxq.database.dialects import dialect_for

DIALECT = dialect_for("postgresql")


def wrapped(error):
    return DBAPIError.instance("SELECT 1", {}, error, psycopg.Error)


@pytest.mark.parametrize("error", [ConnectionTimeout("connection timeout expired"), psycopg.OperationalError("gone")])
def test_connection_errors_are_transient(error):
    assert DIALECT.is_transient(wrapped(error))
    assert DIALECT.comes_from_outside(wrapped(error))
    assert DIALECT.comes_from_outside(error)


@pytest.mark.parametrize(
    "error", [psycopg.InterfaceError("the cursor is closed"), psycopg.ProgrammingError("no result")]
)
def test_a_programming_error_without_a_sqlstate_is_not_transient(error):
    assert not DIALECT.is_transient(wrapped(error))
    assert not DIALECT.comes_from_outside(error)


def test_exceeding_the_temporary_file_limit_is_a_failure_of_the_handler():
    assert not DIALECT.comes_from_outside(ConfigurationLimitExceeded("temporary file size exceeds temp_file_limit"))
    assert DIALECT.comes_from_outside(DiskFull("could not extend file"))
