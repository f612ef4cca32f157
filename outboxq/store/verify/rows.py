"""Check task and relay rows, the values in all rows, and the indexes and triggers of the tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ...database import tables
from ...database.bounds import TIMES_OF_TASKS
from ...database.grammar import Grammar, number, sql_literal, text_literal
from ...database.tables import relay_messages, relay_shards, relays, task_subscriptions
from ...errors import InvalidArgument
from ...model import LONGEST, MAX_ATTEMPT, MAX_NUMBER, EventType, OnDeadLetter, TaskStatus
from ...model.relays import RELAY_PREFIX
from ...model.rules import parse_rule
from ...model.schedules import SCHEDULE_HEADER, TICK_HEADER
from .. import task_rows
from ..claims.claim_sql import value_for
from ..claims.recovery import length_of_claim
from ..producing.schedules_sql import is_planted_ahead
from .check import (
    CLAIMS,
    ENDED,
    ENDS,
    EVENT,
    EXECUTION,
    FAILED,
    OTHERS,
    READY,
    RUNNING,
    Check,
    broken_ones,
    is_a,
    last,
    leading_to,
    of_claim,
    task_of,
)

PART_CHECKS: Mapping[str, Check] = {
    "positions_set_back": Check(
        meaning="the next positions are lower than those in use, so new tasks with a partition key overtake older ones",
        broken=lambda g: g.set_back(),
    ),
    "part_missing": Check(
        meaning="an index or trigger created by `outboxq upgrade` is missing, invalid or disabled; re-create it "
        "with the statement that `outboxq upgrade --sql` prints",
        broken=lambda g: g.missing_parts(),
    ),
    "function_of_other_schema": Check(
        meaning="the tables' schema was renamed, but a function created by `outboxq upgrade` still refers to the old name, so finishing "
        "tasks in batches, emitting events for relays to brokers or enqueueing in SQL fails; docs/upgrading.md, 'A renamed schema', has the statement that corrects the function",
        broken=lambda g: g.misplaced_functions(),
    ),
}


_lease = tables.task_leases.c
ENTRY_OF_TASK = sa.select(tables.task_outbox.c.id).where(tables.task_outbox.c.task_execution_id == EXECUTION.id)
LEASE_OF_TASK = sa.select(_lease.task_execution_id).where(
    _lease.task_execution_id == EXECUTION.id,
    _lease.lease_token == EXECUTION.lease_token,
    _lease.worker_id == EXECUTION.worker_id,
)
READY_OF_ENTRY = sa.select(EXECUTION.id).where(EXECUTION.id == tables.task_outbox.c.task_execution_id, READY)
RUNNING_OF_LEASE = sa.select(EXECUTION.id).where(EXECUTION.id == _lease.task_execution_id, RUNNING)
_RUNNING_UNDER_LEASE = RUNNING_OF_LEASE.where(
    EXECUTION.lease_token == _lease.lease_token, EXECUTION.worker_id == _lease.worker_id
)
DEAD_LETTER_OF_TASK = sa.select(tables.dead_letters.c.task_execution_id).where(
    tables.dead_letters.c.task_execution_id == EXECUTION.id
)
FAILED_OF_DEAD_LETTER = sa.select(EXECUTION.id).where(EXECUTION.id == tables.dead_letters.c.task_execution_id, FAILED)
_VALUES_DIFFER = sa.or_(*(EXECUTION[name].is_distinct_from(tables.task_outbox.c[name]) for name in task_rows.KEPT))
ENTRY_DIFFERS = READY_OF_ENTRY.where(_VALUES_DIFFER).correlate(tables.task_outbox).exists()
"""A condition that tests whether an outbox entry differs from its task, which is Ready."""
_ELSEWHERE = sa.select(EXECUTION.id).where(EXECUTION.id == _lease.task_execution_id, EXECUTION.queue != _lease.queue)
LEASE_DIFFERS = _ELSEWHERE.correlate(tables.task_leases).exists()


def dead_letter_values(g: Grammar) -> Mapping[str, Any]:
    """Return the column values that the dead letter of EXECUTION's task must have."""
    same = {name: EXECUTION[name] for name in ("queue", "task_name", "topic", "partition_key")}
    return {**same, "exception": _last_exception(g), "failed_at": EXECUTION.completed_at}


def dead_letter_differs(g: Grammar) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a dead letter differs from EXECUTION's task, which is Failed."""
    differs = (tables.dead_letters.c[name].is_distinct_from(value) for name, value in dead_letter_values(g).items())
    return sa.and_(EXECUTION.id == tables.dead_letters.c.task_execution_id, FAILED, sa.or_(*differs))


def _last_exception(g: Grammar) -> Any:
    """Select the class of the exception with which EXECUTION's task finally failed; NULL if the task was abandoned or
    failed without an exception.
    """
    recorded = g.text_in(EVENT.event_data, "exception")
    return last(recorded, EVENT.event_type.in_(leading_to(TaskStatus.FAILED)), among=(ENDS, OTHERS))


ROW_CHECKS: Mapping[str, Check] = {
    "ready_without_entry": Check(
        meaning="a Ready task has no outbox entry, so no worker will ever claim it",
        broken=lambda _: sa.select(EXECUTION.id).where(READY, ~ENTRY_OF_TASK.exists()),
    ),
    "entry_without_ready": Check(
        meaning="an outbox entry has no task, or its task is not Ready",
        broken=lambda _: sa.select(task_of(tables.task_outbox)).where(~READY_OF_ENTRY.exists()),
    ),
    "running_without_lease": Check(
        meaning="a Running task has no lease that matches its token and worker, so it will never be recovered",
        broken=lambda _: sa.select(EXECUTION.id).where(RUNNING, ~LEASE_OF_TASK.exists()),
    ),
    "lease_without_running": Check(
        meaning="a lease has no task, or its task is not Running under that lease",
        broken=lambda _: sa.select(task_of(tables.task_leases)).where(~_RUNNING_UNDER_LEASE.exists()),
    ),
    "entry_differs_from_task": Check(
        meaning="an outbox entry differs from its task in queue, priority, key, position, topic or expiry",
        broken=lambda _: sa.select(task_of(tables.task_outbox)).where(ENTRY_DIFFERS),
    ),
    "lease_differs_from_task": Check(
        meaning="a lease and its task belong to different queues",
        broken=lambda _: sa.select(task_of(tables.task_leases)).where(LEASE_DIFFERS),
    ),
    "failed_without_letter": Check(
        meaning="a Failed task is not among the dead letters",
        broken=lambda _: sa.select(EXECUTION.id).where(FAILED, ~DEAD_LETTER_OF_TASK.exists()),
    ),
    "letter_without_failed": Check(
        meaning="a dead letter has no task, or its task is not Failed",
        broken=lambda _: sa.select(task_of(tables.dead_letters)).where(~FAILED_OF_DEAD_LETTER.exists()),
    ),
    "letter_differs_from_task": Check(
        meaning="a dead letter differs from its task in queue, name, topic, key, failure time or exception",
        broken=lambda g: sa.select(EXECUTION.id).join_from(
            tables.task_executions, tables.dead_letters, dead_letter_differs(g)
        ),
    ),
}


_setting = tables.queue_settings.c
GRACE = timedelta(days=1)
"""The largest expected clock error, caused for example by a wrong time zone after a failover or by an administrator's
change.
"""

HOLDS_NOTHING = sa.and_(EXECUTION.on_dead_letter == sql_literal(OnDeadLetter.HOLD), EXECUTION.partition_key.is_(None))
"""A condition that tests whether the task has `on_dead_letter=hold` but no key."""


def _with_half_of(number: sa.ColumnElement[Any], time: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select the queues for which only one of a rate's two values is set."""
    return sa.select(_setting.queue.label("id")).where(number.is_(None) != time.is_(None))


def lease_length(g: Grammar) -> sa.ColumnElement[Any]:
    """Return the length in seconds of a claim's lease: the length recorded in the claim event, or otherwise the task's
    lease length, but not more than the maximum.
    """
    task = sa.select(EXECUTION.lease_seconds).where(EXECUTION.id == _lease.task_execution_id)
    length = sa.func.coalesce(length_of_claim(g), value_for(tables.task_leases, task), type_=sa.Double)
    return sa.case((length > seconds(LONGEST), seconds(LONGEST)), else_=length)


def lease_too_late(g: Grammar) -> sa.ColumnElement[bool]:
    return _lease.lease_expires_at > g.later(latest(g), lease_length(g) + seconds(GRACE))


def rate_too_late(g: Grammar) -> sa.ColumnElement[bool]:
    return _setting.rate_full_at > g.later(latest(g), _setting.rate_seconds + seconds(GRACE))


def latest(g: Grammar) -> sa.ColumnElement[Any]:
    """Return the current time, or the time of the last event if that is later because the clock has since been set
    back.
    """
    newest = tables.execution_events.alias("newest")
    moment = sa.select(newest.c.created_at).order_by(newest.c.sequence_num.desc()).limit(1).scalar_subquery()
    return sa.case((moment > g.now, moment), else_=g.now)


def seconds(span: timedelta) -> sa.ColumnElement[float]:
    return number(span.total_seconds())


def _impossible(g: Grammar) -> sa.Select[Any]:
    longest = seconds(LONGEST)
    ids_wrong = (~g.is_id(EXECUTION.id), ~g.is_id(EXECUTION.pipeline_execution_id))
    return broken_ones(
        sa.select(EXECUTION.id),
        {
            "args_not_an_object": ~g.is_json(EXECUTION.args, an_object=True),
            "headers_not_an_object": sa.and_(
                EXECUTION.headers.is_not(None), ~g.is_json(EXECUTION.headers, an_object=True)
            ),
            "result_not_json": sa.and_(EXECUTION.result.is_not(None), ~g.is_json(EXECUTION.result)),
            "lease_too_long": sa.or_(EXECUTION.lease_seconds > longest, EXECUTION.timeout_seconds > longest),
            "task_out_of_bounds": sa.or_(*_out_of_bounds(g, EXECUTION, TIMES_OF_TASKS), *_counts_wrong(), *ids_wrong),
            "hold_without_key": HOLDS_NOTHING,
            "status_contradicts_row": _STATUS_CONTRADICTS,
        },
    )


_NO_WORKER, _NOT_ENDED = EXECUTION.worker_id.is_(None), EXECUTION.completed_at.is_(None)
_STATUS_CONTRADICTS = sa.case(
    (~_NOT_ENDED, sa.or_(~_NO_WORKER, ~ENDED)),
    (_NO_WORKER, ~READY),
    else_=~RUNNING,
)
"""A condition that tests whether the `status` CHECK on task_executions would refuse the row."""


def _entry_out_of_bounds(g: Grammar) -> sa.Select[Any]:
    entry = tables.task_outbox.c
    wrong = (*_out_of_bounds(g, entry, ("available_at", "expires_at")), ~entry.priority.between(*_PRIORITIES))
    return sa.select(task_of(tables.task_outbox)).where(sa.or_(*wrong))


def _out_of_bounds(g: Grammar, row: Any, instants: Sequence[str]) -> list[sa.ColumnElement[bool]]:
    empty = text_literal("")
    return [~g.is_instant(row[name]) for name in instants] + [row.queue == empty, row.partition_key == empty]


def _counts_wrong() -> list[sa.ColumnElement[bool]]:
    zero, most, most_attempts = _number(0), _number(MAX_NUMBER), _number(MAX_ATTEMPT)
    return [
        EXECUTION.lease_seconds <= zero,
        EXECUTION.timeout_seconds <= zero,
        *(sa.or_(EXECUTION[name] < zero, EXECUTION[name] > most_attempts) for name in ("attempt", "recovery_attempts")),
        *(sa.or_(EXECUTION[name] < zero, EXECUTION[name] > most) for name in ("lease_token", "position")),
    ]


def _number(number: int) -> sa.ColumnElement[int]:
    return sa.literal_column(str(number))


VALUE_CHECKS: Mapping[str, Check] = {
    "lease_ends_too_late": Check(
        meaning="a lease expires later than its length allows, so its task is not recovered if the worker dies",
        broken=lambda g: sa.select(task_of(tables.task_leases)).where(lease_too_late(g)),
    ),
    "rate_full_too_late": Check(
        meaning="a queue's rate limit is used up for longer than its period, so none of the queue's tasks can start",
        broken=lambda g: sa.select(_setting.queue.label("id")).where(rate_too_late(g)),
    ),
    "rate_incomplete": Check(
        meaning="a queue has only one of the two values of its rate limit, so the limit does not apply; set it again",
        broken=lambda _: _with_half_of(_setting.rate_limit, _setting.rate_seconds),
    ),
    "key_rate_incomplete": Check(
        meaning="a queue has only one of the two values of its rate limit per key, so the limit does not apply; set it again",
        broken=lambda _: _with_half_of(_setting.key_rate_limit, _setting.key_rate_seconds),
    ),
    "entry_out_of_bounds": Check(
        meaning="an outbox entry has a value that the tables refuse (a due time, a priority, an empty queue or key), so "
        "the row bypassed their CHECK constraints",
        broken=_entry_out_of_bounds,
    ),
    "args_not_an_object": Check(
        meaning="a task's arguments are not a JSON object, so no worker can read them",
        broken=_impossible,
        also={
            "headers_not_an_object": "a task's headers are not a JSON object, so its handler runs without them",
            "result_not_json": "a task's result is not JSON",
            "lease_too_long": "a task's lease or timeout is longer than the maximum of 100 years",
            "task_out_of_bounds": "a task has a value that the tables refuse (a time, an id, a counter or an empty name), so the "
            "row bypassed their CHECK constraints; no worker runs the task",
            "hold_without_key": "a task has on_dead_letter=hold but no partition key",
            "status_contradicts_row": "a task's status contradicts its worker or its completion time (only a Running task has a worker, "
            "and only a task that has ended has a completion time), so the row bypassed the CHECK constraint",
        },
    ),
}


_PRIORITIES = _number(-100), _number(100)

_step = tables.task_steps.c
TASK_OF_STEP = sa.select(EXECUTION.id).where(EXECUTION.id == _step.task_execution_id)


def _rows_differ(g: Grammar) -> sa.Select[Any]:
    lasting = _completions(g)
    claim = tables.execution_events.alias("claim").c
    recorded = sa.select(lasting.c.id, lasting.c.name).where(lasting.c.lasts).distinct().subquery("recorded")
    claimed = of_claim(claim.sequence_num, _step.task_execution_id, _step.lease_token, claim)
    is_there = TASK_OF_STEP.exists()
    return broken_ones(
        sa.select(task_of(tables.task_steps)).select_from(
            tables.task_steps.outerjoin(
                recorded, sa.and_(recorded.c.id == _step.task_execution_id, recorded.c.name == _step.name)
            )
        ),
        {
            "step_without_task": ~is_there,
            "step_not_recorded": sa.and_(is_there, recorded.c.id.is_(None)),
            "step_without_claim": sa.and_(is_there, ~claimed.exists()),
            "step_not_json": sa.and_(_step.result.is_not(None), ~g.is_json(_step.result)),
        },
    )


def _events_differ(g: Grammar) -> sa.Select[Any]:
    event = _completions(g).c
    stored = sa.select(_step.name).where(_step.task_execution_id == event.id, _step.name == event.name)
    return broken_ones(
        sa.select(event.id),
        {
            "step_lost": sa.and_(event.lasts, ~stored.exists()),
            "step_completed_twice": sa.and_(event.lasts, event.sequence_num < event.latest),
            "step_outside_claim": ~event.was_held,
        },
    )


def _completions(g: Grammar) -> sa.FromClause:
    """Select each event that records a completed step, in one pass over the events of the tasks that have steps.

    `lasts` is true unless a rewind from this step or an earlier step deleted the step. `was_held` is true if, of the
    preceding events that begin or end a claim, the last one begins a claim. `latest` is the last completion of the same
    step.
    """
    completes, rewinds = (
        sa.and_(EVENT.lease_token.is_(None), is_a(kind)) for kind in (EventType.STEP_COMPLETED, EventType.REWOUND)
    )
    stepped = sa.select(EVENT.task_execution_id).where(completes)
    rows = (
        sa.select(
            task_of(tables.execution_events),
            EVENT.sequence_num,
            completes.label("completes"),
            sa.case((rewinds, _step_number(g))).label("rewound_from"),
            sa.case((completes, _step_number(g))).label("number"),
            sa.case((completes, g.text_in(EVENT.event_data, "step"))).label("name"),
            sa.case((CLAIMS, EVENT.sequence_num)).label("begun"),
            sa.case((ENDS, EVENT.sequence_num)).label("ended"),
        )
        .where(EVENT.task_execution_id.in_(stepped), sa.or_(completes, rewinds, EVENT.lease_token.is_not(None)))
        .subquery("rows")
    )
    row = rows.c
    rewound = sa.func.min(row.rewound_from).over(partition_by=row.id, order_by=row.sequence_num.desc())
    begun, ended = (
        sa.func.max(one).over(partition_by=row.id, order_by=row.sequence_num) for one in (row.begun, row.ended)
    )
    latest = sa.func.max(row.sequence_num).over(partition_by=(row.id, row.name))
    read = sa.select(
        row.id,
        row.sequence_num,
        row.name,
        row.completes,
        sa.or_(rewound.is_(None), rewound > row.number).label("lasts"),
        sa.and_(begun.is_not(None), sa.or_(ended.is_(None), begun > ended)).label("was_held"),
        latest.label("latest"),
    ).subquery("read")
    return sa.select(read).where(read.c.completes).subquery("completed")


def _step_number(g: Grammar) -> sa.ColumnElement[int]:
    return sa.cast(g.text_in(EVENT.event_data, "number"), sa.Integer)


STEP_CHECKS: Mapping[str, Check] = {
    "step_without_task": Check(
        meaning="a step belongs to a task that does not exist",
        broken=_rows_differ,
        also={
            "step_not_recorded": "a step has a result that no event records",
            "step_without_claim": "a step has a lease token that does not belong to any claim of its task",
            "step_not_json": "the result of a step is not JSON, so no later attempt of its task can read it; rewind the task to that step",
        },
    ),
    "step_lost": Check(
        meaning="an event records a completed step whose result is missing, so the step's function would be called again",
        broken=_events_differ,
        also={
            "step_completed_twice": "a step was completed again, although its result was stored",
            "step_outside_claim": "a step was completed outside any claim of its task",
        },
    ),
}


_tick, _schedule = tables.schedule_ticks.c, tables.task_schedules.c
TASK_OF_TICK = sa.select(EXECUTION.id).where(EXECUTION.id == _tick.task_execution_id)
_TICK_OF_TASK = sa.select(_tick.tick).where(_tick.task_execution_id == EXECUTION.id)
_NAMES_A_TICK = EXECUTION.headers.like(text_literal(f'%"{TICK_HEADER}"%'))


_READ = ("rule", "tz", "args", "starts_at")


def _is_unreadable(row: Mapping[str, Any]) -> bool:
    try:
        parse_rule(row["rule"], row["tz"], starts_at=row["starts_at"])
        return not isinstance(json.loads(row["args"]), dict)
    except (InvalidArgument, ValueError, RecursionError):
        return True


def _differs(g: Grammar) -> sa.Select[Any]:
    schedule, tick = _headers(g)
    rows = sa.select(EXECUTION.id).join_from(
        tables.schedule_ticks, tables.task_executions, EXECUTION.id == _tick.task_execution_id
    )
    return rows.where(sa.or_(schedule.is_distinct_from(_tick.schedule), tick.is_distinct_from(_tick.tick)))


def _unrecorded(g: Grammar) -> sa.Select[Any]:
    """Select the tasks whose ticks have no row. Cancelled tasks are left out, because the tick of a planted task that
    was cancelled is free again.
    """
    is_cancelled = EXECUTION.status == sql_literal(TaskStatus.CANCELLED)
    _, tick = _headers(g)
    return sa.select(EXECUTION.id).where(_NAMES_A_TICK, ~is_cancelled, tick.is_not(None), ~_TICK_OF_TASK.exists())


def _beyond(_: Grammar) -> sa.Select[Any]:
    """Select the schedules with unstarted tasks for ticks after `planted_until`. Started tasks are ignored, because a
    person may have started them early. Paused schedules are ignored, because they resume from where they were paused.
    """
    is_planted = sa.and_(READY, EXECUTION.first_started_at.is_(None), _tick.tick > _schedule.planted_until)
    return (
        sa.select(_schedule.name.label("id"))
        .join_from(tables.task_schedules, tables.schedule_ticks, _tick.schedule == _schedule.name)
        .join(tables.task_executions, EXECUTION.id == _tick.task_execution_id)
        .where(_schedule.paused_at.is_(None), is_planted)
        .distinct()
    )


def _planted_ahead(g: Grammar) -> sa.Select[Any]:
    """Select the schedules that are planted too far ahead. Paused schedules are left out, because they are planted
    according to the current clock when they are resumed.
    """
    return sa.select(_schedule.name.label("id")).where(_schedule.paused_at.is_(None), is_planted_ahead(g))


def _headers(g: Grammar) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    """Return the schedule and the tick in the headers of EXECUTION's task; NULL if the headers are not a JSON object."""
    headers = sa.case((g.is_json(EXECUTION.headers, an_object=True), EXECUTION.headers))
    return g.text_in(headers, SCHEDULE_HEADER), g.instant_in(headers, TICK_HEADER)


TICK_CHECKS: Mapping[str, Check] = {
    "tick_without_task": Check(
        meaning="a tick of a schedule belongs to a task that does not exist",
        broken=lambda _: sa.select(task_of(tables.schedule_ticks)).where(~TASK_OF_TICK.exists()),
    ),
    "tick_differs_from_task": Check(
        meaning="a tick of a schedule belongs to the task for another tick, so one of the two ticks may be missing",
        broken=_differs,
    ),
    "task_without_tick": Check(
        meaning="a task was enqueued for a tick of a schedule, but the tick is not recorded for that task, so the tick may run twice",
        broken=_unrecorded,
    ),
    "planted_beyond_planted_until": Check(
        meaning="a schedule has a planted tick after its planted_until",
        broken=_beyond,
    ),
    "planted_by_a_clock_ahead": Check(
        meaning=(
            "a schedule is planted further ahead than the current clock allows; within 15 seconds, a worker "
            "plants it again according to the current clock; if that does not happen, the current clock is slow"
        ),
        broken=_planted_ahead,
    ),
    "schedule_unreadable": Check(
        meaning="the rule, time zone or arguments of a schedule cannot be read by this process, so none of its ticks is planted, or its tasks "
        "fail: store the schedule again, or remove it",
        broken=lambda _: sa.select(_schedule.name.label("id"), *(_schedule[name] for name in _READ)).where(
            _schedule.paused_at.is_(None)
        ),
        is_broken=_is_unreadable,
    ),
}


_r, _s, _m = relays.c, relay_shards.c, relay_messages.c
_topic = task_subscriptions.c
_name_of_topic = sa.func.substr(_topic.task_name, sa.literal_column(str(len(RELAY_PREFIX) + 1)), type_=sa.Text)


def _relay(name: sa.ColumnElement[Any], *where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(_r.name).where(_r.name == name, *where).correlate(relay_messages, relay_shards, task_subscriptions)


def _shards_wrong(g: Grammar) -> sa.Select[Any]:
    return broken_ones(
        sa.select(_s.relay.label("id")),
        {
            "shard_without_relay": ~_relay(_s.relay, _s.shard.between(_number(0), _r.shards - _number(1))).exists(),
            "shard_lease_without_worker": sa.and_(_s.worker_id.is_not(None), _s.lease_expires_at.is_(None)),
            "shard_lease_ends_too_late": shard_lease_too_late(g),
        },
    )


def shard_lease_too_late(g: Grammar) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a shard's lease ends too late. A lease is short compared with GRACE."""
    return _s.lease_expires_at > g.later(latest(g), seconds(GRACE))


def _relays_wrong(g: Grammar) -> sa.Select[Any]:
    number = sa.select(sa.func.count()).where(_s.relay == _r.name).correlate(relays).scalar_subquery()
    broken = {"shard_missing": number < _r.shards, "relay_waits_too_long": relay_waits_too_long(g)}
    return broken_ones(sa.select(_r.name.label("id")), broken)


def relay_waits_too_long(g: Grammar) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a relay's pause is too long. A pause is short compared with GRACE."""
    return _r.next_try_at > g.later(latest(g), seconds(GRACE))


RELAY_CHECKS: Mapping[str, Check] = {
    "message_without_relay": Check(
        meaning="an event waits for a relay that does not exist, so no worker publishes it; declare the relay again, or "
        "delete the row from relay_messages",
        broken=lambda _: sa.select(_m.relay.label("id")).where(~_relay(_m.relay).exists()).distinct(),
    ),
    "topic_without_relay": Check(
        meaning="a topic belongs to a relay that does not exist, so its events are written but never published; start a "
        "worker that declares the relay, or remove the subscription",
        broken=lambda _: (
            sa.select(_topic.task_name.label("id"))
            .where(_topic.parameter.is_(None), ~_relay(_name_of_topic).exists())
            .distinct()
        ),
    ),
    "shard_without_relay": Check(
        meaning="a shard belongs to a relay that does not exist, or its number is not one of the relay's shard numbers",
        broken=_shards_wrong,
        also={
            "shard_lease_without_worker": "the lease of a shard has a worker but no expiry time, so no other worker can take over the shard",
            "shard_lease_ends_too_late": "the lease of a shard expires later than its length allows, so no other worker can take over the shard",
        },
    ),
    "shard_missing": Check(
        meaning="a relay has fewer shards than declared, so some of its events are never published; change its "
        "number of shards and start a worker",
        broken=_relays_wrong,
        also={
            "relay_waits_too_long": "the time until a relay's next attempt is longer than any pause after a failure, so none of its events is published"
        },
    ),
}
