"""Check bounds: the length of a lease, the time at which a rate limit is full again, and the values of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Integer,
    Select,
    Text,
    and_,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
)

from ....model import LONGEST, MAX_ATTEMPT, MAX_NUMBER, EventType, OnDeadLetter
from ...tables import execution_events, queue_settings, task_leases, task_outbox
from ..grammar import Grammar, word
from .check import EVENT, EXECUTION, Check, broken_ones

_lease, _setting = task_leases.c, queue_settings.c
_GRACE = timedelta(days=1)
"""The largest error of a clock that is expected after an administrator or a server that took over has set it: a time zone, say."""


def checks() -> Mapping[str, Check]:
    return {
        "lease_ends_too_late": Check(
            meaning="a lease ends later than its length from now, so nobody recovers its task if the worker is dead",
            broken=_lease_too_late,
        ),
        "rate_full_too_late": Check(
            meaning="a queue's rate limit is used up for longer than its time, so none of its tasks starts",
            broken=lambda g: select(_setting.queue.label("id")).where(rate_too_late(g)),
        ),
        "entry_out_of_bounds": Check(
            meaning="an outbox entry has a value that the tables refuse (a due time, a priority, an empty queue or key), so "
            "it was written without their CHECKs",
            broken=_entry_out_of_bounds,
        ),
        "args_not_an_object": Check(
            meaning="a task's arguments are not a JSON object, so no worker can read them",
            broken=_impossible,
            also={
                "result_not_json": "a task's result is not JSON",
                "lease_too_long": "a task's lease or timeout is longer than the hundred years that can be asked for",
                "task_out_of_bounds": "a task has a value that the tables refuse (a time, an id, a counter or an empty name), so it "
                "was written without their CHECKs; no worker runs it",
                "hold_without_key": "a task has on_dead_letter=hold but no partition key",
            },
        ),
    }


def holds_nothing() -> ColumnElement[bool]:
    """Return a condition: the task has `on_dead_letter=hold` but no key."""
    return and_(EXECUTION.on_dead_letter == word(OnDeadLetter.HOLD), EXECUTION.partition_key.is_(None))


def lease_length(g: Grammar) -> ColumnElement[Any]:
    """Return the seconds of a claim's lease: its own, which its event has, or the task's; at most the longest."""
    own = (
        select(cast(g.text_in(EVENT.event_data, "lease_seconds"), Double))
        .where(
            EVENT.task_execution_id == _lease.task_execution_id,
            EVENT.lease_token == _lease.lease_token,
            EVENT.event_type == word(EventType.CLAIMED),
        )
        .correlate(task_leases)
        .scalar_subquery()
    )
    task = (
        select(EXECUTION.lease_seconds)
        .where(EXECUTION.id == _lease.task_execution_id)
        .correlate(task_leases)
        .scalar_subquery()
    )
    seconds = func.coalesce(own, task, type_=Double)
    return case((seconds > _seconds(LONGEST), _seconds(LONGEST)), else_=seconds)


def lease_too_late(g: Grammar) -> ColumnElement[bool]:
    return _lease.lease_expires_at > g.later(_latest(g), lease_length(g) + _seconds(_GRACE))


def rate_too_late(g: Grammar) -> ColumnElement[bool]:
    return _setting.rate_full_at > g.later(_latest(g), _setting.rate_seconds + _seconds(_GRACE))


def _latest(g: Grammar) -> ColumnElement[Any]:
    """Return the present time, or that of the last event if it is later because the clock was set back since."""
    newest = execution_events.alias("newest")
    moment = select(newest.c.created_at).order_by(newest.c.sequence_num.desc()).limit(1).scalar_subquery()
    return case((moment > g.now, moment), else_=g.now)


def _seconds(span: timedelta) -> ColumnElement[float]:
    return literal_column(str(span.total_seconds()), Double)


def _lease_too_late(g: Grammar) -> Select[Any]:
    return select(_lease.task_execution_id.label("id")).where(lease_too_late(g))


def _impossible(g: Grammar) -> Select[Any]:
    longest = _seconds(LONGEST)
    return broken_ones(
        select(EXECUTION.id),
        {
            "args_not_an_object": ~g.is_json(EXECUTION.args, an_object=True),
            "result_not_json": and_(EXECUTION.result.is_not(None), ~g.is_json(EXECUTION.result)),
            "lease_too_long": or_(EXECUTION.lease_seconds > longest, EXECUTION.timeout_seconds > longest),
            "task_out_of_bounds": or_(*_out_of_bounds(g, EXECUTION, _INSTANTS), *_counts_wrong(), *_ids_wrong(g)),
            "hold_without_key": holds_nothing(),
        },
    )


def _entry_out_of_bounds(g: Grammar) -> Select[Any]:
    entry = task_outbox.c
    wrong = (*_out_of_bounds(g, entry, ("available_at", "expires_at")), ~entry.priority.between(*_PRIORITIES))
    return select(entry.task_execution_id.label("id")).where(or_(*wrong))


def _out_of_bounds(g: Grammar, row: Any, instants: Sequence[str]) -> list[ColumnElement[bool]]:
    empty = literal_column("''", Text)
    return [~g.is_instant(row[name]) for name in instants] + [row.queue == empty, row.partition_key == empty]


def _counts_wrong() -> list[ColumnElement[bool]]:
    none, most = literal_column("0", Integer), literal_column(str(MAX_NUMBER), BigInteger)
    counted = literal_column(str(MAX_ATTEMPT), Integer)
    return [
        EXECUTION.lease_seconds <= none,
        EXECUTION.timeout_seconds <= none,
        *(or_(EXECUTION[name] < none, EXECUTION[name] > counted) for name in ("attempt", "recovery_attempts")),
        *(or_(EXECUTION[name] < none, EXECUTION[name] > most) for name in ("lease_token", "position")),
    ]


def _ids_wrong(g: Grammar) -> list[ColumnElement[bool]]:
    return [~g.is_id(EXECUTION.id), ~g.is_id(EXECUTION.pipeline_execution_id)]


_PRIORITIES = literal_column("-100", Integer), literal_column("100", Integer)
_INSTANTS = ("created_at", "expires_at", "first_started_at", "retry_at", "completed_at", "cancel_requested_at")
