"""Write and read batches. Triggers count the tasks of a batch as they end, and enqueue the `then` tasks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import sqlalchemy as sa

from ...database.column_types import Instant, parameter_type
from ...database.grammar import (
    ONE,
    ZERO,
    Builder,
    Columns,
    Grammar,
    Relations,
    SqlStatus,
    Statement,
    Transition,
    insert_values,
    limit,
    one_step,
    sql_literal,
)
from ...database.tables import (
    execution_events,
    task_batch_changes,
    task_batches,
    task_executions,
    task_leases,
    task_outbox,
)
from ...model import EventType, TaskStatus
from ...model.batches import OnFailed
from ..arguments import parameters
from ..task_rows import IDS, event_without_task, made_together

_batch, _execution = task_batches.c, task_executions.c
_batch_id, _after, _before = parameters(sa.Uuid, "batch_id", "after", "before")
_added = sa.bindparam("added", type_=sa.Integer, required=True)
_closes = sa.bindparam("closes", False, type_=sa.Boolean)
_older = sa.bindparam("older", type_=Instant, required=True)
_force, _dead_letters, _runs_then = parameters(sa.Boolean, "force", "dead_letters", "runs_then")


def create(g: Grammar) -> Transition:
    """Write a batch without tasks, and its event."""
    own = ("id", "kind", "name", "on_failed", "size", "closed", "then_tasks")
    given: Columns = {**{name: parameter_type(_batch[name].type) for name in own}, "links": sa.Integer()}

    def batch(r: Relations) -> Statement:
        values = {
            **{name: r["given"].c[name] for name in own},
            **dict.fromkeys(("completed", "failed", "cancelled", "stage"), ZERO),
            "runs_then": sa.literal_column("true", sa.Boolean),
            "created_at": g.now,
            "updated_at": g.now,
        }
        return insert_values(sa.insert(task_batches), values, r["given"])

    def event(r: Relations) -> Statement:
        given = r["given"].c
        data = g.json(**{name: given[name] for name in ("kind", "name", "on_failed", "links")})
        values = event_without_task(g, given.id, EventType.BATCH_CREATED, data)
        return insert_values(sa.insert(execution_events), values, r["given"])

    return Transition(given=given, steps={"batch": batch, "event": event})


def change(g: Grammar) -> sa.Insert:
    """Add :added tasks to a batch, and close it if :closes is true. The change is counted when the transaction commits;
    on SQLite, immediately.

    Returns no row for a missing or completed batch, or for a batch that is being cancelled and would get more tasks.
    """
    values: dict[str, Any] = {
        "batch_id": _batch.id,
        "added": _added,
        **dict.fromkeys(("completed", "failed", "cancelled"), ZERO),
        "closes": _closes,
        "changed_at": g.now,
    }
    takes = sa.or_(_added <= ZERO, _batch.cancel_requested_at.is_(None))
    rows = sa.select(*values.values()).where(_batch.id == _batch_id, _batch.completed_at.is_(None), takes)
    new = sa.insert(task_batch_changes).from_select(list(values), rows)
    return new.returning(task_batch_changes.c.batch_id.label("id"))


def get(_: Grammar) -> sa.Select[Any]:
    """Select one batch."""
    return sa.select(task_batches).where(_batch.id == _batch_id)


def known(_: Grammar) -> sa.Select[Any]:
    """Select the id of a batch. Selects no row if there is no such batch."""
    return sa.select(_batch.id).where(_batch.id == _batch_id)


def unclosed(_: Grammar) -> sa.Select[Any]:
    """Select the unclosed batches among the first :most unfinished batches, using the index of unfinished batches.

    An unclosed batch never ends on its own, so it is eventually among the first batches.
    """
    first = _first_unfinished()
    return sa.select(first.c.id, first.c.name, first.c.kind).where(sa.not_(first.c.closed)).order_by(first.c.id)


def waiting_for_dead_letters(_: Grammar) -> sa.Select[Any]:
    """Select, from the first :most unfinished batches and chains, those that are waiting only for dead letters, each
    with the number of its dead letters and the time of its last change.
    """
    first = _first_unfinished()
    return sa.select(first.c.id, first.c.name, first.c.kind, first.c.failed, first.c.updated_at).where(
        first.c.closed,
        first.c.cancel_requested_at.is_(None),
        first.c.on_failed == sql_literal(OnFailed.WAIT),
        first.c.failed > ZERO,
        _ended(first.c) >= first.c.size,
    )


def _ended(batch: Any) -> Any:
    """Return the number of tasks that have ended. Even forged counts cannot overflow the sum."""
    return sa.cast(batch.completed, sa.BigInteger) + batch.failed + batch.cancelled


def _first_unfinished() -> sa.Subquery:
    most = sa.bindparam("most", type_=sa.BigInteger, required=True)
    unfinished = sa.select(task_batches).where(_batch.completed_at.is_(None))
    return unfinished.order_by(_batch.id).limit(most).subquery("first")


def left_open(_: Grammar) -> sa.Select[Any]:
    """Select the id of a batch that has neither completed nor been cancelled."""
    open_one = (_batch.completed_at.is_(None), _batch.cancel_requested_at.is_(None))
    return sa.select(_batch.id).where(_batch.id == _batch_id, *open_one)


def newest(_: Grammar) -> sa.Select[Any]:
    """Select up to :limit batches with ids before :before, newest first."""
    return sa.select(task_batches).where(_batch.id < _before).order_by(_batch.id.desc()).limit(limit)


def newest_open(g: Grammar) -> sa.Select[Any]:
    """Select up to :limit unfinished batches with ids before :before, newest first, using the index of unfinished
    batches.
    """
    return newest(g).where(_batch.completed_at.is_(None))


def members(_: Grammar) -> sa.Select[Any]:
    """Select the ids and statuses of up to :limit of a batch's tasks in id order, starting after the id :after."""
    mine = sa.select(_execution.id, _execution.status).where(made_together(_batch_id), _execution.id > _after)
    return mine.order_by(_execution.id).limit(limit)


_BY_URGENCY = (TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.RUNNING, TaskStatus.READY)
"""The statuses of the tasks that are not Completed, in the order in which a person wants to see the tasks."""


def not_completed(_: Grammar) -> sa.Select[Any]:
    """Select the ids of up to :limit of a batch's tasks that are not Completed, in the order of `_BY_URGENCY`."""
    urgency = sa.case(
        *(
            (_execution.status == sql_literal(one), sa.literal_column(str(place)))
            for place, one in enumerate(_BY_URGENCY)
        )
    )
    mine = sa.select(_execution.id).where(made_together(_batch_id), _execution.status != SqlStatus.COMPLETED)
    return mine.order_by(urgency, _execution.id).limit(limit)


def unended(g: Grammar) -> sa.Select[Any]:
    """Select the ids and statuses of up to :limit of a batch's tasks that a cancellation would change, in id order,
    starting after the id :after.

    Running tasks that have been asked to stop are included only with :force, and dead letters only with :dead_letters.
    """
    asked = sa.or_(_execution.cancel_requested_at.is_(None), _force)
    changes = sa.or_(
        _execution.status == SqlStatus.READY,
        sa.and_(_execution.status == SqlStatus.RUNNING, asked),
        sa.and_(_execution.status == SqlStatus.FAILED, _dead_letters),
    )
    return members(g).where(changes)


def _lock(ids: sa.Column[Any], g: Grammar) -> sa.Select[Any]:
    """Lock the rows with these ids of the tasks that `unended` selects, in id order."""
    found = unended(g).subquery("found")
    return sa.select(ids).where(g.among(ids, found.c.id)).order_by(ids).with_for_update()


LOCK: Mapping[str, Builder] = {
    ids.table.name: partial(_lock, ids)
    for ids in (task_outbox.c.task_execution_id, task_leases.c.task_execution_id, task_executions.c.id)
}
"""Locks the rows that a cancellation changes, table by table, in the order in which every statement locks these tables.
"""


def unasked(g: Grammar) -> sa.Select[Any]:
    """Select the Running tasks of `unended` that have not been asked to stop. This reads the running tasks instead of
    the whole batch.
    """
    leased = _leased(g)
    mine = (leased.c.batch_id == _batch_id, leased.c.cancel_requested_at.is_(None), leased.c.id > _after)
    return sa.select(leased.c.id, SqlStatus.RUNNING.label("status")).where(*mine).order_by(leased.c.id).limit(limit)


def left_to_cancel(g: Grammar) -> sa.Select[Any]:
    """Select the rows of `cancelling` that have tasks left to cancel, with the counts of these tasks: waiting tasks,
    running tasks that have not been asked to stop, and dead letters. Batches that are only waiting for running tasks to
    end do not count toward the limit.

    The query reads each batch's counts and the running tasks, but no other tasks. Both come from one snapshot, so a
    task that is neither finished nor running is waiting.
    """
    leased = _leased(g)
    unasked = sa.func.sum(sa.case((leased.c.cancel_requested_at.is_(None), ONE), else_=ZERO))
    counted = sa.select(leased.c.batch_id, sa.func.count().label("running"), unasked.label("unasked"))
    running = counted.group_by(leased.c.batch_id).subquery("running")
    waiting = _batch.size - _ended(_batch) - sa.func.coalesce(running.c.running, ZERO)
    left = sa.func.coalesce(running.c.unasked, ZERO)
    discards = sa.and_(_batch.failed > ZERO, _batch.on_failed == sql_literal(OnFailed.WAIT))
    counts = (waiting.label("waiting"), left.label("unasked"), _batch.failed)
    found = cancelling(g).add_columns(*counts).where(sa.or_(waiting != ZERO, left != ZERO, discards))
    return found.select_from(task_batches.outerjoin(running, running.c.batch_id == _batch.id))


def _leased(g: Grammar) -> sa.CTE:
    """Return all running tasks with their batches. The tasks are found by their leases."""
    columns = (_execution.id, _execution.pipeline_execution_id.label("batch_id"), _execution.cancel_requested_at)
    running = (g.among(_execution.id, task_leases.c.task_execution_id), _execution.status == SqlStatus.RUNNING)
    return sa.select(*columns).where(*running).cte("leased").prefix_with("MATERIALIZED")


def statuses(_: Grammar) -> sa.Select[Any]:
    """Count the tasks of a batch by status."""
    counted = sa.select(_execution.status, sa.func.count().label("tasks"))
    return counted.where(made_together(_batch_id)).group_by(_execution.status)


def cancelling(_: Grammar) -> sa.Select[Any]:
    """Select up to :limit batches whose tasks must be cancelled, and whether their `then` tasks will still be enqueued."""
    unfinished = sa.select(_batch.id, _batch.runs_then, _batch.on_failed).where(_batch.completed_at.is_(None))
    return unfinished.where(_batch.cancel_requested_at.is_not(None)).order_by(_batch.id).limit(limit)


def request_cancel(g: Grammar) -> sa.Update:
    """Request the cancellation of an unfinished batch and close it; skip its `then` tasks unless :runs_then. Returns no
    row for a completed batch.
    """
    values = {
        "closed": sa.true(),
        "cancel_requested_at": sa.func.coalesce(_batch.cancel_requested_at, g.now),
        "runs_then": _batch.runs_then & _runs_then,
        "updated_at": g.now,
    }
    requested = sa.update(task_batches).where(_batch.id == _batch_id, _batch.completed_at.is_(None))
    return requested.values(values).returning(_batch.id, _batch.on_failed)


def missing_dead_letters(_: Grammar) -> sa.Select[Any]:
    """Lock up to :limit batches that are waiting for a dead letter that no longer exists. Skips locked batches."""
    waits = (_batch.on_failed == sql_literal(OnFailed.WAIT), _batch.failed > ZERO, _batch.failed > _dead())
    found = sa.select(_batch.id).where(_batch.completed_at.is_(None), *waits)
    return found.order_by(_batch.id).limit(limit).with_for_update(skip_locked=True)


@one_step("counted", IDS, returns=True)
def forget_dead_letters(g: Grammar, given: Any) -> Statement:
    """Count the missing dead letters of these batches as cancelled. The batches must be locked first."""
    dead = _dead()
    waits = (g.among(_batch.id, given.id), _batch.completed_at.is_(None), _batch.failed > dead)
    values = {"failed": dead, "cancelled": _batch.cancelled + _batch.failed - dead, "updated_at": g.now}
    return sa.update(task_batches).where(*waits).values(values).returning(_batch.id)


def _dead() -> sa.ColumnElement[int]:
    """Return the number of the batch's dead letters."""
    dead = sa.select(sa.func.count()).select_from(task_executions)
    mine = dead.where(made_together(_batch.id), _execution.status == SqlStatus.FAILED)
    return mine.correlate(task_batches).scalar_subquery()


def prune(g: Grammar) -> Transition:
    """Delete up to :limit batches that completed before :older and no longer have tasks."""
    task = sa.select(_execution.id).where(made_together(_batch.id))

    def doomed(_: Relations) -> Statement:
        old = sa.select(_batch.id).where(_batch.completed_at < _older, ~task.correlate(task_batches).exists())
        return old.order_by(_batch.id).limit(limit).with_for_update(skip_locked=True)

    def gone(r: Relations) -> Statement:
        return sa.delete(task_batches).where(g.among(_batch.id, r["doomed"].c.id)).returning(_batch.id)

    return Transition(steps={"doomed": doomed, "gone": gone}, returns="gone")
