"""PostgreSQL's errors, classified by their remedy."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.errors import ConfigurationLimitExceeded, ConnectionTimeout, DiskFull
from sqlalchemy.exc import DBAPIError

from outboxq.database.dialects import postgresql_errors


def wrapped(error):
    return DBAPIError.instance("SELECT 1", {}, error, psycopg.Error)


@pytest.mark.parametrize("error", [ConnectionTimeout("connection timeout expired"), psycopg.OperationalError("gone")])
def test_connection_errors_are_transient(error):
    assert postgresql_errors.is_transient(wrapped(error))
    assert postgresql_errors.comes_from_outside(wrapped(error))
    assert postgresql_errors.comes_from_outside(error)


@pytest.mark.parametrize(
    "error", [psycopg.InterfaceError("the cursor is closed"), psycopg.ProgrammingError("no result")]
)
def test_a_programming_error_without_a_sqlstate_is_not_transient(error):
    assert not postgresql_errors.is_transient(wrapped(error))
    assert not postgresql_errors.comes_from_outside(error)


def test_exceeding_the_temporary_file_limit_is_a_failure_of_the_handler():
    assert not postgresql_errors.comes_from_outside(
        ConfigurationLimitExceeded("temporary file size exceeds temp_file_limit")
    )
    assert postgresql_errors.comes_from_outside(DiskFull("could not extend file"))
