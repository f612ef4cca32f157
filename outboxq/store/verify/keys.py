"""Check that partition keys and idempotency keys are not shared or lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import sqlalchemy as sa

from ...database import queue_order
from ...database.grammar import Grammar, sql_literal
from ...database.tables import execution_events, idempotency_keys, partition_claims, task_executions
from ...model import TERMINAL, EventType, OnDeadLetter
from ..claims.claim_sql import same_key
from .check import (
    ENDS,
    EVENT,
    EVENT_OF_TASK,
    EXECUTION,
    FAILED,
    OTHERS,
    RUNNING,
    UNFINISHED,
    Check,
    broken_ones,
    has_event,
    is_a,
    leading_to,
    speaks_of,
    task_of,
)

_Columns: TypeAlias = tuple[sa.ColumnElement[Any], ...]
_claim = partition_claims.c
_KEY = (EXECUTION.queue, EXECUTION.partition_key)
_HAS_KEY = EXECUTION.partition_key.is_not(None)
RUNNING_WITH_KEY = sa.and_(_HAS_KEY, RUNNING)
"""A condition that tests whether the task is running, in which case it must have its key."""
IS_ORDERED = sa.not_(queue_order.is_concurrency_key(EXECUTION.partition_key))
"""A condition that tests whether only one task with the key runs at a time. Several tasks with the same concurrency key
may run at once; their leases are counted.
"""
HOLDING = sa.and_(_HAS_KEY, FAILED, EXECUTION.on_dead_letter == sql_literal(OnDeadLetter.HOLD))
"""A condition that tests whether the task is Failed with `on_dead_letter=hold`, in which case it keeps its key."""
CLAIM_OF_TASK = sa.select(_claim.task_execution_id).where(
    _claim.task_execution_id == EXECUTION.id, same_key(partition_claims, task_executions)
)
TASK_OF_CLAIM = sa.select(EXECUTION.id).where(
    EXECUTION.id == _claim.task_execution_id,
    same_key(task_executions, partition_claims),
    sa.or_(sa.and_(RUNNING_WITH_KEY, _claim.held == sa.false()), sa.and_(HOLDING, _claim.held == sa.true())),
)


def _all_but_first(name: str, tasks: sa.ColumnElement[bool], *, of: _Columns, by: _Columns) -> sa.Select[Any]:
    """Select these tasks except the first of each group. The tasks in a group have the same values in the columns `of`,
    and are ordered by `by`.
    """
    nth = sa.func.row_number().over(partition_by=of, order_by=by)
    ranked = sa.select(EXECUTION.id, nth.label("nth")).where(tasks).subquery(name)
    return sa.select(ranked.c.id).where(ranked.c.nth > sa.literal_column("1"))


def _claimed_twice(_: Grammar) -> sa.Select[Any]:
    """Compare claims by number instead of by time: if a key is claimed after the commit that ended an earlier
    claim, the later claim has a higher number.

    Before a task was replaced, it may have had a different key, which is not recorded.
    """
    replaced = execution_events.alias("replaced")
    moved = sa.select(replaced.c.sequence_num).where(
        replaced.c.task_execution_id == EXECUTION.id,
        replaced.c.lease_token.is_(None),
        is_a(EventType.REPLACED, replaced.c),
    )
    following = sa.func.lead(EVENT.event_type).over(partition_by=_KEY, order_by=EVENT.sequence_num)
    steps = (
        sa.select(EXECUTION.id, EVENT.event_type, following.label("following"))
        .join_from(task_executions, execution_events, EVENT_OF_TASK)
        .where(_HAS_KEY, IS_ORDERED, EVENT.lease_token.is_not(None), ~moved.exists())
        .subquery("steps")
    )
    claimed = sql_literal(EventType.CLAIMED)
    return sa.select(steps.c.id).where(steps.c.event_type == claimed, steps.c.following == claimed)


PARTITION_KEY_CHECKS: Mapping[str, Check] = {
    "position_taken_twice": Check(
        meaning="two tasks with the same partition key have the same position, so their order is random",
        broken=lambda _: _all_but_first("placed", _HAS_KEY, of=(*_KEY, EXECUTION.position), by=(EXECUTION.id,)),
    ),
    "claimed_key_without_task": Check(
        meaning="a partition key is taken by a task that is neither running nor a dead letter that holds its key, so no other task with the key is claimed",
        broken=lambda _: sa.select(task_of(partition_claims)).where(~TASK_OF_CLAIM.exists()),
    ),
    "running_without_key": Check(
        meaning="a Running task has not taken its partition key, so another task with the key may run too",
        broken=lambda _: sa.select(EXECUTION.id).where(
            RUNNING_WITH_KEY, IS_ORDERED, ~CLAIM_OF_TASK.where(_claim.held == sa.false()).exists()
        ),
    ),
    "failed_without_key": Check(
        meaning="a Failed task with on_dead_letter=hold does not hold its partition key",
        broken=lambda _: sa.select(EXECUTION.id).where(
            HOLDING, IS_ORDERED, ~CLAIM_OF_TASK.where(_claim.held == sa.true()).exists()
        ),
    ),
    "key_running_twice": Check(
        meaning="a task is running at the same time as a later task with the same partition key",
        broken=lambda _: _all_but_first(
            "running", sa.and_(RUNNING_WITH_KEY, IS_ORDERED), of=_KEY, by=(EXECUTION.position.desc(), EXECUTION.id)
        ),
    ),
    "key_claimed_twice": Check(
        meaning="a task was claimed while another task with the same partition key was still claimed",
        broken=_claimed_twice,
    ),
}


_key = idempotency_keys.c


class Birth:
    """The idempotency key in a task's `task_created` event."""

    def __init__(self, g: Grammar, name: str) -> None:
        event = execution_events.alias(name)
        self.event = event
        self.task = event.c.task_execution_id
        self.key = g.text_in(event.c.event_data, "idempotency_key")
        self.until = g.instant_in(event.c.event_data, "unique_until")
        self.until_finished = g.text_in(event.c.event_data, "unique_until_finished").is_not(None)
        self.asked = sa.and_(
            event.c.lease_token.is_(None),
            is_a(EventType.CREATED, event.c),
            speaks_of("idempotency_key", event.c),
            self.key.is_not(None),
        )


def holds_another(g: Grammar) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the task named by a row of `idempotency_keys` was enqueued with a different
    key, or has a different name.
    """
    birth = Birth(g, "birth")
    return _of_task(birth.task, birth, ~_is_its_own(birth)).exists()


def expires_otherwise(g: Grammar) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a key's expiry differs from the one that its task requested. A key that a
    redrive took back does not expire, but becomes free when the task has ended.
    """
    birth = Birth(g, "birth")
    taken_back = sa.and_(_key.until_finished, _key.expires_at.is_(None))
    differs = (_is_its_own(birth), birth.until.is_distinct_from(_key.expires_at), ~taken_back)
    return _of_task(birth.task, birth, *differs).exists()


def requested_expiry(g: Grammar) -> Any:
    """Select the expiry that a key's holder requested for the key."""
    birth = Birth(g, "birth")
    return _of_task(birth.until, birth, _is_its_own(birth)).scalar_subquery()


def _is_its_own(birth: Birth) -> sa.ColumnElement[bool]:
    return sa.and_(birth.key == _key.key, EXECUTION.task_name == _key.scope)


def _of_task(column: sa.ColumnElement[Any], birth: Birth, *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Select a column for the task named by a row of `idempotency_keys`, if the conditions are true."""
    return (
        sa.select(column)
        .join_from(birth.event, task_executions, EXECUTION.id == birth.task)
        .where(birth.task == _key.task_execution_id, birth.asked, *conditions)
        .correlate(idempotency_keys)
    )


def lost(g: Grammar, birth: Birth) -> sa.Select[Any]:
    """Select the unfinished tasks that requested a key, if the key is not held by any task that requested it. The query
    joins `birth`.

    An expired key may belong to another task. A key that was requested only until its task finishes may also belong to
    another task, if its own task has ended and has since been redriven.
    """
    other = Birth(g, "other")
    has_ended = has_event(EVENT.event_type.in_(leading_to(*TERMINAL)), among=(ENDS, OTHERS))
    rightful = sa.select(other.task).where(other.task == _key.task_execution_id, other.asked, other.key == birth.key)
    rightful = rightful.correlate(idempotency_keys, birth.event)
    owner = sa.or_(_key.task_execution_id == EXECUTION.id, rightful.exists())
    held = sa.select(_key.task_execution_id).where(_key.scope == EXECUTION.task_name, _key.key == birth.key, owner)
    return (
        sa.select(EXECUTION.id)
        .join_from(task_executions, birth.event, birth.task == EXECUTION.id)
        .where(
            UNFINISHED,
            birth.asked,
            sa.or_(birth.until.is_(None), birth.until > g.now),
            ~sa.and_(birth.until_finished, has_ended),
            ~held.exists(),
        )
    )


IDEMPOTENCY_KEY_CHECKS: Mapping[str, Check] = {
    "key_without_task": Check(
        meaning="an idempotency key is held by a task that does not exist",
        broken=lambda _: sa.select(task_of(idempotency_keys)).where(
            ~sa.select(EXECUTION.id).where(EXECUTION.id == _key.task_execution_id).exists()
        ),
    ),
    "key_differs_from_birth": Check(
        meaning="a task holds an idempotency key that it was not enqueued with, so the same request may run twice",
        broken=lambda g: broken_ones(
            sa.select(task_of(idempotency_keys)),
            {"key_differs_from_birth": holds_another(g), "key_expiry_differs_from_birth": expires_otherwise(g)},
        ),
        also={
            "key_expiry_differs_from_birth": "an idempotency key's expiry differs from the one that its task was enqueued with, so the key is free too early or "
            "too late"
        },
    ),
    "key_lost": Check(
        meaning="an unfinished task does not hold its idempotency key, so the same request may run twice",
        broken=lambda g: lost(g, Birth(g, "birth")),
    ),
}
