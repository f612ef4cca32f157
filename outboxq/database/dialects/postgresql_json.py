"""Test if a text is JSON, without an error, on PostgreSQL 15."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, ColumnElement, Integer, Text, and_, case, func, literal_column, true

_STRING = r'"([^"\\]|\\.)*"'
_WORDS = "([][{}:,[:space:]]|-?[0-9][0-9.eE+-]*|true|false|null)"
_VALUE = r'(?:"[^"\\]*"|-?[0-9.]+|true|false|null)'
_FLAT, _FLAT_OBJECT = f"^{_VALUE}$", rf'^\{{(?:"[^"\\]*": ?{_VALUE},? ?)*\}}$'
"""The usual forms of arguments and results, which are recognised in a third of the time."""


def is_json(text: ColumnElement[Any], *, an_object: bool) -> ColumnElement[bool]:
    """Return a condition: the text is JSON, as far as PostgreSQL 15 can tell.

    It holds if the strings of the text are closed, the text outside of them has words of JSON only, and as many brackets open
    as close. That detects text that is cut, pasted together, or no JSON at all. PostgreSQL 16 and later have a test of their
    own.
    """
    flat = _FLAT_OBJECT if an_object else _FLAT
    strings = literal_column(f"'{_STRING}'", Text)
    outside = func.regexp_replace(text, strings, literal_column("'0'"), literal_column("'g'"), type_=Text)
    shape = rf"^[[:space:]]*\{{{_WORDS}*\}}[[:space:]]*$" if an_object else f"^{_WORDS}+$"
    nested = and_(_matches(outside, shape), _less(outside, "{[") == _less(outside, "}]"))
    return case((_matches(text, flat), true()), else_=nested)


def _matches(text: ColumnElement[str], pattern: str) -> ColumnElement[bool]:
    return text.op("~", return_type=Boolean())(literal_column(f"'{pattern}'", Text))


def _less(text: ColumnElement[str], letters: str) -> ColumnElement[int]:
    """Return the length of the text without these characters."""
    return func.length(func.translate(text, literal_column(f"'{letters}'"), literal_column("''")), type_=Integer)
