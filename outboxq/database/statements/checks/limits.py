"""Check bounds: the length of a lease, the time at which a rate limit is full again, and the values of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Double, Select, and_, case, cast, func, literal_column, or_, select

from ....model import LONGEST, MAX_ATTEMPT, MAX_NUMBER, OnDeadLetter
from ...grammar import Grammar, sql_literal, text_literal
from ...tables import execution_events, queue_settings, task_leases, task_outbox
from .check import ENDED, EVENT, EXECUTION, READY, RUNNING, Check, broken_ones, of_claim, task_of

_lease, _setting = task_leases.c, queue_settings.c
GRACE = timedelta(days=1)
"""The largest error of a clock that is expected after an administrator or a server that took over has set it: a time zone, say."""

HOLDS_NOTHING = and_(EXECUTION.on_dead_letter == sql_literal(OnDeadLetter.HOLD), EXECUTION.partition_key.is_(None))
"""A condition: the task has `on_dead_letter=hold` but no key."""


def checks() -> Mapping[str, Check]:
    return {
        "lease_ends_too_late": Check(
            meaning="a lease ends later than its length from now, so nobody recovers its task if the worker is dead",
            broken=lambda g: select(task_of(task_leases)).where(lease_too_late(g)),
        ),
        "rate_full_too_late": Check(
            meaning="a queue's rate limit is used up for longer than its time, so none of its tasks starts",
            broken=lambda g: select(_setting.queue.label("id")).where(rate_too_late(g)),
        ),
        "rate_incomplete": Check(
            meaning="a queue has a number of starts without their time, or a time without a number, so it has no rate limit; set it again",
            broken=lambda _: _with_half_of(_setting.rate_limit, _setting.rate_seconds),
        ),
        "key_rate_incomplete": Check(
            meaning="a queue has a number of starts per key without their time, or a time without a number, so its keys have no rate "
            "limit; set it again",
            broken=lambda _: _with_half_of(_setting.key_rate_limit, _setting.key_rate_seconds),
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
                "headers_not_an_object": "a task's headers are not a JSON object, so its handler runs without them",
                "result_not_json": "a task's result is not JSON",
                "lease_too_long": "a task's lease or timeout is longer than the hundred years that can be asked for",
                "task_out_of_bounds": "a task has a value that the tables refuse (a time, an id, a counter or an empty name), so it "
                "was written without their CHECKs; no worker runs it",
                "hold_without_key": "a task has on_dead_letter=hold but no partition key",
                "status_contradicts_row": "a task's status contradicts its worker or its end: only a Running task has a worker, "
                "and only one that has ended has the time of its end; so it was written without the CHECK",
            },
        ),
    }


def _with_half_of(number: ColumnElement[Any], time: ColumnElement[Any]) -> Select[Any]:
    """Select the queues that have one half of a rate."""
    return select(_setting.queue.label("id")).where(number.is_(None) != time.is_(None))


def lease_length(g: Grammar) -> ColumnElement[Any]:
    """Return the seconds of a claim's lease: its own, which its event has, or the task's; at most the longest."""
    own = cast(g.text_in(EVENT.event_data, "lease_seconds"), Double)
    claim = of_claim(own, _lease.task_execution_id, _lease.lease_token).correlate(task_leases)
    task = select(EXECUTION.lease_seconds).where(EXECUTION.id == _lease.task_execution_id).correlate(task_leases)
    length = func.coalesce(claim.scalar_subquery(), task.scalar_subquery(), type_=Double)
    return case((length > seconds(LONGEST), seconds(LONGEST)), else_=length)


def lease_too_late(g: Grammar) -> ColumnElement[bool]:
    return _lease.lease_expires_at > g.later(latest(g), lease_length(g) + seconds(GRACE))


def rate_too_late(g: Grammar) -> ColumnElement[bool]:
    return _setting.rate_full_at > g.later(latest(g), _setting.rate_seconds + seconds(GRACE))


def latest(g: Grammar) -> ColumnElement[Any]:
    """Return the present time, or that of the last event if it is later because the clock was set back since."""
    newest = execution_events.alias("newest")
    moment = select(newest.c.created_at).order_by(newest.c.sequence_num.desc()).limit(1).scalar_subquery()
    return case((moment > g.now, moment), else_=g.now)


def seconds(span: timedelta) -> ColumnElement[float]:
    return literal_column(str(span.total_seconds()), Double)


def _impossible(g: Grammar) -> Select[Any]:
    longest = seconds(LONGEST)
    ids_wrong = (~g.is_id(EXECUTION.id), ~g.is_id(EXECUTION.pipeline_execution_id))
    return broken_ones(
        select(EXECUTION.id),
        {
            "args_not_an_object": ~g.is_json(EXECUTION.args, an_object=True),
            "headers_not_an_object": and_(
                EXECUTION.headers.is_not(None), ~g.is_json(EXECUTION.headers, an_object=True)
            ),
            "result_not_json": and_(EXECUTION.result.is_not(None), ~g.is_json(EXECUTION.result)),
            "lease_too_long": or_(EXECUTION.lease_seconds > longest, EXECUTION.timeout_seconds > longest),
            "task_out_of_bounds": or_(*_out_of_bounds(g, EXECUTION, _INSTANTS), *_counts_wrong(), *ids_wrong),
            "hold_without_key": HOLDS_NOTHING,
            "status_contradicts_row": _STATUS_CONTRADICTS,
        },
    )


_NOBODY, _NOT_ENDED = EXECUTION.worker_id.is_(None), EXECUTION.completed_at.is_(None)
_STATUS_CONTRADICTS = case(
    (~_NOT_ENDED, or_(~_NOBODY, ~ENDED)),
    (_NOBODY, ~READY),
    else_=~RUNNING,
)
"""A condition: the CHECK `status` of task_executions would refuse the row."""


def _entry_out_of_bounds(g: Grammar) -> Select[Any]:
    entry = task_outbox.c
    wrong = (*_out_of_bounds(g, entry, ("available_at", "expires_at")), ~entry.priority.between(*_PRIORITIES))
    return select(task_of(task_outbox)).where(or_(*wrong))


def _out_of_bounds(g: Grammar, row: Any, instants: Sequence[str]) -> list[ColumnElement[bool]]:
    empty = text_literal("")
    return [~g.is_instant(row[name]) for name in instants] + [row.queue == empty, row.partition_key == empty]


def _counts_wrong() -> list[ColumnElement[bool]]:
    zero, most, most_attempts = _number(0), _number(MAX_NUMBER), _number(MAX_ATTEMPT)
    return [
        EXECUTION.lease_seconds <= zero,
        EXECUTION.timeout_seconds <= zero,
        *(or_(EXECUTION[name] < zero, EXECUTION[name] > most_attempts) for name in ("attempt", "recovery_attempts")),
        *(or_(EXECUTION[name] < zero, EXECUTION[name] > most) for name in ("lease_token", "position")),
    ]


def _number(number: int) -> ColumnElement[int]:
    return literal_column(str(number))


_PRIORITIES = _number(-100), _number(100)
_INSTANTS = ("created_at", "expires_at", "first_started_at", "retry_at", "completed_at", "cancel_requested_at")
