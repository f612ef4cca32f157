"""The text of an array that PostgreSQL parses: each element is returned unchanged, whatever its neighbors are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.exc import DataError

from outboxq.database.column_types import _packed
from outboxq.model.uuid7 import uuid7s

TEXTS = ["", "null", "NULL", '"', "\\", '\\"', "{", "}", ",", '","', " ", "\n", "é", "\u2028", "\x01", "a\\\\b", "'"]
ARRAYS: list[tuple[str, list[Any]]] = [
    ("text", TEXTS),
    ("text", [*TEXTS, None]),
    ("text", [None]),
    ("text", []),
    ("uuid", uuid7s(3)),
    ("uuid", [*uuid7s(3), None]),
    ("bigint", [1, None, -(2**62)]),
    ("boolean", [True, None, False]),
    ("timestamptz", [datetime(2000, 1, 1, 12, tzinfo=UTC), None]),
]


@pytest.mark.parametrize(("kind", "values"), ARRAYS)
def test_an_array_is_returned_unchanged(postgresql, kind, values):
    with postgresql.engine.connect() as connection:
        found = connection.exec_driver_sql(f"SELECT unnest(CAST(%(values)s AS {kind}[]))", {"values": _packed(values)})
        assert [value for (value,) in found] == values


@pytest.mark.parametrize("values", [["a\0b"], ["a\0b", "c"], ["\0", "\0"]])
def test_a_nul_character_in_an_element_is_refused(postgresql, values):
    with postgresql.engine.connect() as connection, pytest.raises(DataError, match="NUL"):
        connection.exec_driver_sql("SELECT unnest(CAST(%(values)s AS text[]))", {"values": _packed(values)})
