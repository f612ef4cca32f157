"""List dead letters, and find those of an operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)

from ...model.display import HEAD
from ..column_types import Instant
from ..tables import dead_letters, partition_claims, task_executions
from .claim import limit
from .event_log import had_failed
from .grammar import Columns, Grammar

_letter = dead_letters.c
_SAME = {name: bindparam(name, type_=Text, required=True) for name in ("queue", "task_name", "topic", "partition_key")}
"""Filters: columns and their values; NULL for any value."""
_exception = bindparam("exception", type_=Text, required=True)
_exception_end = bindparam("exception_end", type_=Text, required=True)
_since = bindparam("since", type_=Instant, required=True)
_until = bindparam("until", type_=Instant, required=True)
_one, _head_length = (literal_column(str(number), Integer) for number in (1, HEAD))
_ALIKE = ("queue", "task_name", "exception")
_after = tuple_(
    bindparam("after_failed_at", type_=Instant, required=True), bindparam("after_id", type_=Uuid, required=True)
)


def newest(g: Grammar) -> Select[Any]:
    """Select a page of the matching dead letters, newest first, after (:after_failed_at, :after_id)."""
    page = (
        select(dead_letters)
        .where(_matches(), tuple_(_letter.failed_at, _letter.task_execution_id) < _after)
        .order_by(_letter.failed_at.desc(), _letter.task_execution_id.desc())
        .limit(limit)
        .cte("page")
        .prefix_with("MATERIALIZED")
    )
    return _listed(g, page)


def _listed(g: Grammar, page: Any) -> Select[Any]:
    """Select these dead letters with what their tasks have besides, newest first."""
    execution, claim = task_executions.c, partition_claims.c
    held = select(claim.task_execution_id).where(claim.task_execution_id == page.c.task_execution_id, claim.held)
    return (
        select(
            page.c.task_execution_id.label("id"),
            *(page.c[name] for name in ("task_name", "queue", "topic", "partition_key", "exception", "failed_at")),
            execution.last_error,
            execution.attempt,
            execution.recovery_attempts,
            held.correlate(page).exists().label("holds_key"),
        )
        .join_from(page, task_executions, execution.id == page.c.task_execution_id)
        .where(g.among(execution.id, page.c.task_execution_id))
        .order_by(page.c.failed_at.desc(), page.c.task_execution_id.desc())
    )


def oldest(g: Grammar) -> Select[Any]:
    """Select the next matching dead letters of the snapshot :head, :open, oldest first, after (:after_failed_at, :after_id).

    They are not locked here. The lock that counts is the execution's, which comes before its dead letter's.
    """
    return (
        select(_letter.task_execution_id.label("id"), _letter.failed_at)
        .where(_matches(), _counted(g), tuple_(_letter.failed_at, _letter.task_execution_id) > _after)
        .order_by(_letter.failed_at, _letter.task_execution_id)
        .limit(limit)
    )


def oldest_with_errors(g: Grammar) -> Select[Any]:
    """Select as `oldest` does, with the queue, the task's name, the exception and the beginning of the error."""
    after = tuple_(_letter.failed_at, _letter.task_execution_id) > _after
    return _with_errors(g, after, (_letter.failed_at, _letter.task_execution_id))


def newest_with_errors(g: Grammar) -> Select[Any]:
    """Select the same of the matching dead letters before (:after_failed_at, :after_id), newest first."""
    before = tuple_(_letter.failed_at, _letter.task_execution_id) < _after
    return _with_errors(g, before, (_letter.failed_at.desc(), _letter.task_execution_id.desc()))


def _with_errors(g: Grammar, where: ColumnElement[bool], order: Sequence[Any]) -> Select[Any]:
    page = select(dead_letters).where(_matches(), _counted(g), where).order_by(*order).limit(limit).subquery("page")
    columns = (page.c.task_execution_id.label("id"), page.c.failed_at, *(page.c[name] for name in _ALIKE))
    found = select(*columns, _head(page).label("head"))
    down = order[0] is not _letter.failed_at
    by = (page.c.failed_at, page.c.task_execution_id)
    return found.order_by(*(column.desc() if down else column for column in by))


def given(g: Grammar) -> Select[Any]:
    """Select the dead letters of the batch :chosen, newest first."""
    ids = g.rows("chosen", GIVEN).c.id
    page = select(dead_letters).where(g.among(_letter.task_execution_id, ids)).cte("page").prefix_with("MATERIALIZED")
    return _listed(g, page)


GIVEN: Columns = {"id": Uuid()}
"""The columns of the batch."""


def count(g: Grammar) -> Select[Any]:
    """Count the matching dead letters of the snapshot :head, :open, up to :limit."""
    some: Select[Any] = select(literal_column("1").label("one")).where(_matches(), _counted(g)).limit(limit)
    return select(func.count().label("tasks")).select_from(some.subquery("some"))


def _head(letter: Any) -> ColumnElement[str]:
    """Return the beginning of the task's error, which the execution has: it is looked up."""
    error: ColumnElement[str] = func.substr(task_executions.c.last_error, _one, _head_length, type_=Text)
    found = select(error).where(task_executions.c.id == letter.c.task_execution_id)
    return found.correlate(letter).scalar_subquery()


def _counted(g: Grammar) -> ColumnElement[bool]:
    return had_failed(g, dead_letters, _letter.task_execution_id)


def _matches() -> ColumnElement[bool]:
    """Return the filter conditions. Dead letters are few, so all but the times are compared row by row."""
    same = [or_(wanted.is_(None), _letter[name] == wanted) for name, wanted in _SAME.items()]
    # The end of the exception's name. A name no longer than :exception never equals :exception_end.
    ending = func.substr(_letter.exception, func.length(_letter.exception) - func.length(_exception), type_=Text)
    kind = or_(_exception.is_(None), _letter.exception == _exception, ending == _exception_end)
    return and_(_letter.failed_at >= _since, _letter.failed_at < _until, *same, kind)
