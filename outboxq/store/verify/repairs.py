"""Make the repairs that do not require guessing. Each repair checks its invariant again, in its own snapshot, before it
writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from ...database import tables
from ...database.column_types import Instant
from ...database.grammar import Grammar, Relations, Statement, Transition, sql_literal
from ...model import OnDeadLetter
from .. import task_rows
from ..claims.claim_sql import value_for
from ..messages.relays import LEASE
from . import batches, events, keys, rows
from .check import ENDED, EXECUTION, FAILED, READY, RUNNING, only, task_of, updated

_entry, _lease = tables.task_outbox.c, tables.task_leases.c
_OF_ENTRY = [EXECUTION[name] for name in ("id", *task_rows.KEPT)]


def _position(g: Grammar) -> Transition:
    """Restore the task's position, and give the task a new outbox entry."""
    recorded = events.recorded_position(g)
    moved = sa.update(tables.task_executions).where(events.position_differs(recorded)).values(position=recorded)
    return Transition(
        steps={
            "moved": lambda _: moved.returning(*_OF_ENTRY),
            "gone": lambda r: _entries_gone(g, r["moved"], _entry.available_at),
            "again": lambda r: _entries_again(g, r["moved"], r["gone"], r["gone"].c.available_at),
        },
        returns="moved",
    )


def _due(g: Grammar) -> Transition:
    """Replace the task's entry with one that has the due time from the task's last event."""
    due = events.last_due(g)
    task = (
        _locked(*_OF_ENTRY, due.label("due"))
        .join_from(tables.task_executions, tables.task_outbox, _entry.task_execution_id == EXECUTION.id)
        .where(READY, events.LEADS_HERE, _entry.available_at != due)
    )
    return Transition(
        steps={
            "task": lambda _: task,
            "gone": lambda r: _entries_gone(g, r["task"]),
            "again": lambda r: _entries_again(g, r["task"], r["gone"], r["task"].c.due),
        },
        returns="task",
    )


def _entry_again(g: Grammar) -> Transition:
    """Replace the entry with one that has the task's values and the same due time."""
    gone = sa.delete(tables.task_outbox).where(rows.ENTRY_DIFFERS)
    return Transition(
        steps={
            "gone": lambda _: gone.returning(task_of(tables.task_outbox), _entry.available_at),
            "task": lambda r: sa.select(*_OF_ENTRY).where(g.among(EXECUTION.id, r["gone"].c.id)),
            "again": lambda r: _entries_again(g, r["task"], r["gone"], r["gone"].c.available_at),
        },
        returns="gone",
    )


def _worker(_: Grammar) -> Transition:
    """Give the task and its lease back to the worker that claimed the task. If no claim is recorded, nothing is
    changed.
    """
    claimed_by = events.CLAIMED_BY
    differs = (claimed_by.is_not(None), EXECUTION.worker_id.is_distinct_from(claimed_by))
    moved = sa.update(tables.task_executions).where(RUNNING, *differs).values(worker_id=claimed_by)

    def lease(r: Relations) -> Statement:
        moved = r["moved"].c
        mine = (_lease.task_execution_id == moved.id, _lease.lease_token == moved.lease_token)
        return sa.update(tables.task_leases).where(*mine).values(worker_id=moved.worker_id)

    found = (EXECUTION.id, EXECUTION.worker_id, EXECUTION.lease_token)
    return Transition(steps={"moved": lambda _: moved.returning(*found), "lease": lease}, returns="moved")


def _cancel(_: Grammar) -> Transition:
    """Restore the task's cancel request. The worker reads the request at its next heartbeat."""
    asked = events.asked_since_claim()
    return _written(events.UNHEARD & asked.is_not(None), cancel_requested_at=asked)


def _lease_end(g: Grammar) -> Transition:
    """Make the lease expire after its own length, counted from now, as a heartbeat does."""
    end = g.later(g.now, rows.lease_length(g))
    return updated(tables.task_leases, rows.lease_too_late(g), {"lease_expires_at": end}, task_of(tables.task_leases))


def _shard_lease_end(g: Grammar) -> Transition:
    end, shard = g.later(g.now, rows.seconds(LEASE)), tables.relay_shards
    return updated(shard, rows.shard_lease_too_late(g), {"lease_expires_at": end}, shard.c.relay.label("id"))


def _lease_queue(_: Grammar) -> Transition:
    queue = sa.select(EXECUTION.queue).where(EXECUTION.id == _lease.task_execution_id).scalar_subquery()
    return updated(tables.task_leases, rows.LEASE_DIFFERS, {"queue": queue}, task_of(tables.task_leases), _lease.queue)


def _rate(g: Grammar) -> Transition:
    """Mark the rate limit as used up now, so that it is not exceeded, no matter how many tasks have been started."""
    setting = tables.queue_settings.c
    full_at = g.later(g.now, setting.rate_seconds)
    found = (setting.queue.label("id"), setting.queue)
    return updated(tables.queue_settings, rows.rate_too_late(g), {"rate_full_at": full_at}, *found)


def _renewed_dead_letter(g: Grammar) -> Transition:
    """Give the dead letter the values of its task and of the last failure."""
    differs = sa.exists(sa.select(EXECUTION.id).where(rows.dead_letter_differs(g)).correlate(tables.dead_letters))
    mine = EXECUTION.id == tables.dead_letters.c.task_execution_id
    values = {
        name: value_for(tables.dead_letters, sa.select(value).where(mine))
        for name, value in rows.dead_letter_values(g).items()
    }
    return updated(tables.dead_letters, differs, values, task_of(tables.dead_letters))


def _key_expiry(g: Grammar) -> Transition:
    """Set the expiry that the task requested."""
    values = {"expires_at": keys.requested_expiry(g)}
    return updated(tables.idempotency_keys, keys.expires_otherwise(g), values, task_of(tables.idempotency_keys))


def _lost_key(g: Grammar) -> Transition:
    """Give the key back to the task for the requested time. The task that currently has the key never requested it."""
    birth = keys.Birth(g, "birth")
    values = {
        "scope": EXECUTION.task_name,
        "key": birth.key,
        "task_execution_id": EXECUTION.id,
        "expires_at": birth.until,
        "until_finished": birth.until_finished,
        "created_at": EXECUTION.created_at,
    }
    found = keys.lost(g, birth).with_only_columns(*values.values())
    return _inserted(g, "again", tables.idempotency_keys, list(values), found, key=("scope", "key"))


def _missing_entry(g: Grammar) -> Transition:
    """Insert the missing entry with the due time from the task's last event."""
    due = sa.func.coalesce(events.last_due(g), g.now, type_=Instant)
    found = _locked(*_OF_ENTRY, due, g.now).where(READY, ~rows.ENTRY_OF_TASK.exists())
    columns = ["task_execution_id", *task_rows.KEPT, "available_at", "created_at"]
    return _inserted(g, "entry", tables.task_outbox, columns, found)


def _missing_lease(g: Grammar) -> Transition:
    """Give the task an expired lease, so that the task is recovered and the recovery is counted. A lease must have a
    worker, so a task without a worker is left out.
    """
    same = ("queue", "lease_token", "worker_id")
    found = _locked(EXECUTION.id, *(EXECUTION[name] for name in same), g.now).where(
        RUNNING, EXECUTION.worker_id.is_not(None), ~rows.LEASE_OF_TASK.exists()
    )
    columns = ["task_execution_id", *same, "lease_expires_at"]
    return _inserted(g, "lease", tables.task_leases, columns, found, key=("task_execution_id",))


def _missing_dead_letter(g: Grammar) -> Transition:
    """Insert the missing dead letter with the values of the last failure."""
    recorded = rows.dead_letter_values(g)
    found = _locked(EXECUTION.id, *recorded.values()).where(FAILED, ~rows.DEAD_LETTER_OF_TASK.exists())
    return _inserted(g, "letter", tables.dead_letters, ["task_execution_id", *recorded], found)


def _missing_claim(g: Grammar, owns: sa.ColumnElement[bool], held: sa.ColumnElement[bool]) -> Transition:
    """Give the key back to the task unless another task has the key. If another task has the key, it is unknown which
    of the two tasks should have it.
    """
    found = _locked(EXECUTION.queue, EXECUTION.partition_key, EXECUTION.id, held)
    columns = ["queue", "partition_key", "task_execution_id", "held"]
    return _inserted(g, "taken", tables.partition_claims, columns, found.where(owns, ~keys.CLAIM_OF_TASK.exists()))


def _deleted(table: sa.Table, wrong: sa.ColumnElement[bool], *columns: sa.ColumnElement[Any]) -> Transition:
    return only("gone", sa.delete(table).where(wrong).returning(task_of(table), *columns))


def _written(wrong: sa.ColumnElement[bool], **values: Any) -> Transition:
    """Write these columns in the executions for which `wrong` is true."""
    return updated(tables.task_executions, wrong, values, EXECUTION.id)


def _as_recorded(column: str, recorded: sa.ColumnElement[Any], *conditions: sa.ColumnElement[bool]) -> Transition:
    """For executions that meet all conditions, set the column to the value from the events."""
    return _written(sa.and_(*conditions, EXECUTION[column].is_distinct_from(recorded)), **{column: recorded})


def _locked(*columns: Any) -> sa.Select[Any]:
    """Select these columns of executions, and lock the rows."""
    return sa.select(*columns).with_for_update(of=tables.task_executions)


def _inserted(
    g: Grammar, name: str, table: sa.Table, columns: Sequence[str], found: sa.Select[Any], *, key: Sequence[str] = ()
) -> Transition:
    """Insert the rows found. A row that has been added in the meantime is kept; with `key`, a row with the same key is
    replaced.
    """
    new = g.insert(table).from_select(columns, found)
    values = {column: new.excluded[column] for column in columns if column not in key}
    index = [table.c[column] for column in key]
    put = new.on_conflict_do_update(index_elements=index, set_=values) if key else new.on_conflict_do_nothing()
    return only(name, put.returning(task_of(table)))


def _entries_gone(g: Grammar, tasks: sa.FromClause, *columns: sa.ColumnElement[Any]) -> Statement:
    gone = sa.delete(tables.task_outbox).where(g.among(_entry.task_execution_id, tasks.c.id))
    return gone.returning(task_of(tables.task_outbox), *columns)


def _entries_again(g: Grammar, tasks: sa.FromClause, gone: sa.FromClause, due: sa.ColumnElement[Any]) -> Statement:
    """Insert new entries for the tasks whose entries are gone. Entries are never updated."""
    return task_rows.entry(g, tasks.c, tasks.join(gone, tasks.c.id == gone.c.id), ready=sa.true(), due=due)


REPAIRS: Mapping[str, Callable[[Grammar], Transition]] = {
    "positions_set_back": lambda g: g.set_forward(),
    "position_differs_from_events": _position,
    "due_differs_from_events": _due,
    "worker_differs_from_claim": _worker,
    "end_differs_from_events": lambda _: _as_recorded("completed_at", events.LAST_END, ENDED, events.LEADS_HERE),
    "retry_differs_from_events": lambda g: _as_recorded("retry_at", events.last_retry(g), events.LEADS_HERE),
    "error_differs_from_events": lambda g: _as_recorded("last_error", events.last_error(g)),
    "cancel_forgotten": _cancel,
    "lease_ends_too_late": _lease_end,
    "rate_full_too_late": _rate,
    "hold_without_key": lambda _: _written(rows.HOLDS_NOTHING, on_dead_letter=sql_literal(OnDeadLetter.RELEASE)),
    "letter_differs_from_task": _renewed_dead_letter,
    # This deletes a key that the task was not enqueued with. The repair of `key_lost` restores a lost key.
    "key_differs_from_birth": lambda g: _deleted(tables.idempotency_keys, keys.holds_another(g)),
    "key_expiry_differs_from_birth": _key_expiry,
    "key_lost": _lost_key,
    "ready_without_entry": _missing_entry,
    "entry_without_ready": lambda _: _deleted(tables.task_outbox, ~rows.READY_OF_ENTRY.exists()),
    "running_without_lease": _missing_lease,
    "lease_without_running": lambda _: _deleted(tables.task_leases, ~rows.RUNNING_OF_LEASE.exists()),
    "entry_differs_from_task": _entry_again,
    "lease_differs_from_task": _lease_queue,
    "failed_without_letter": _missing_dead_letter,
    "letter_without_failed": lambda _: _deleted(tables.dead_letters, ~rows.FAILED_OF_DEAD_LETTER.exists()),
    "claimed_key_without_task": lambda _: _deleted(
        tables.partition_claims, ~keys.TASK_OF_CLAIM.exists(), tables.partition_claims.c.queue
    ),
    "running_without_key": lambda g: _missing_claim(g, sa.and_(keys.RUNNING_WITH_KEY, keys.IS_ORDERED), sa.false()),
    "failed_without_key": lambda g: _missing_claim(g, sa.and_(keys.HOLDING, keys.IS_ORDERED), sa.true()),
    "tick_without_task": lambda _: _deleted(tables.schedule_ticks, ~rows.TASK_OF_TICK.exists()),
    "step_without_task": lambda _: _deleted(tables.task_steps, ~rows.TASK_OF_STEP.exists()),
    "batch_differs_from_events": batches.as_made,
    "batch_counts_differ": batches.recount,
    "batch_stage_differs": batches.set_stage,
    "batch_ahead_of_time": batches.set_back,
    "shard_lease_ends_too_late": _shard_lease_end,
    "relay_waits_too_long": lambda g: updated(
        tables.relays, rows.relay_waits_too_long(g), {"next_try_at": g.now}, tables.relays.c.name.label("id")
    ),
}
"""Maps the name of each check to its repair. A repair returns the repaired ids, and the queue if work became
claimable.
"""

LOCKS: Mapping[str, Callable[[Grammar], sa.Select[Any]]] = {
    "batch_counts_differ": partial(batches.locked, wrong=batches.counts_differ),
    "batch_stage_differs": partial(batches.locked, wrong=batches.stage_differs),
}
"""Maps the name of each check to the rows that its repair must lock before counting rows that other sessions may be
writing.
"""
