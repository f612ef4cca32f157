"""The invariants, each as a query for the ids that break it; and the repairs.

They hold at any instant, so they are read from one snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, delete, func, or_, select

from ..column_types import Instant
from ..model import ENDS_CLAIM, STATUS_AFTER, TERMINAL, EventType, TaskStatus
from ..tables import execution_events, idempotency_keys, task_executions, task_leases, task_outbox
from .grammar import Grammar, Relations, Statement, Transition, word


@dataclass(frozen=True, kw_only=True)
class Check:
    """One invariant, said as what is wrong where it does not hold."""

    meaning: str
    broken: Callable[[Grammar], Select[Any]]
    """The ids of the tasks that break it; the column `id`."""


def checks() -> Mapping[str, Check]:
    """Every invariant by its name."""
    return {
        "ready_without_entry": Check(
            meaning="a Ready task has no outbox entry, so no worker will ever claim it", broken=_ready_without_entry
        ),
        "entry_without_ready": Check(
            meaning="an outbox entry belongs to a task that is not Ready, or to none", broken=_entry_without_ready
        ),
        "running_without_lease": Check(
            meaning="a Running task has no lease of its token and worker, so nobody will recover it",
            broken=_running_without_lease,
        ),
        "lease_without_running": Check(
            meaning="a lease belongs to a task that is not Running under it, or to none", broken=_lease_without_running
        ),
        "status_differs_from_events": Check(
            meaning="the last transition recorded leads to another status than the task has", broken=_status_differs
        ),
        "birth_not_recorded_once": Check(
            meaning="a task has no task_created event, or more than one", broken=_birth_not_once
        ),
        "token_differs_from_claims": Check(
            meaning="the lease token is not the number of claims recorded", broken=_token_differs
        ),
        "claimed_twice": Check(
            meaning="one lease token was claimed twice",
            broken=lambda _: _more_than_one(_event.event_type == word(EventType.CLAIMED)),
        ),
        "ended_twice": Check(
            meaning="one claim has two ends",
            broken=lambda _: _more_than_one(
                and_(_event.event_type != word(EventType.CLAIMED), _event.lease_token.is_not(None))
            ),
        ),
        "end_without_claim": Check(
            meaning="a claim ended that never began, or an event that ends no claim carries a token",
            broken=_end_without_claim,
        ),
        "claim_left_open": Check(
            meaning="a claim has no end although its task is not Running under it", broken=_claim_left_open
        ),
        "life_after_end": Check(
            meaning="something happened to a task after its end, and it was not run again by hand",
            broken=_life_after_end,
        ),
        "claimed_early": Check(meaning="a task was claimed before it was due", broken=_claimed_early),
        "recovered_early": Check(meaning="a lease was taken back before it expired", broken=_recovered_early),
        "key_without_task": Check(
            meaning="an idempotency key is held by a task that does not exist", broken=_key_without_task
        ),
    }


def repairs() -> Mapping[str, Callable[[Grammar], Transition]]:
    """For the checks that can be put right without guessing. Each looks again in its own snapshot before it writes."""
    return {
        "ready_without_entry": _repair_ready,
        "entry_without_ready": _repair_entry,
        "running_without_lease": _repair_running,
        "lease_without_running": _repair_lease,
    }


_execution = task_executions.c
_event = execution_events.c
_entry_of_task = select(task_outbox.c.id).where(task_outbox.c.task_execution_id == _execution.id)
_lease_of_task = select(task_leases.c.task_execution_id).where(
    task_leases.c.task_execution_id == _execution.id,
    task_leases.c.lease_token == _execution.lease_token,
    task_leases.c.worker_id == _execution.worker_id,
)
_transition = _event.event_type.in_([word(kind) for kind in STATUS_AFTER])


def _ready_without_entry(_: Grammar) -> Select[Any]:
    return select(_execution.id).where(_execution.status == word(TaskStatus.READY), ~_entry_of_task.exists())


def _entry_without_ready(_: Grammar) -> Select[Any]:
    ready = select(_execution.id).where(
        _execution.id == task_outbox.c.task_execution_id, _execution.status == word(TaskStatus.READY)
    )
    return select(task_outbox.c.task_execution_id.label("id")).where(~ready.exists())


def _running_without_lease(_: Grammar) -> Select[Any]:
    return select(_execution.id).where(_execution.status == word(TaskStatus.RUNNING), ~_lease_of_task.exists())


def _lease_without_running(_: Grammar) -> Select[Any]:
    lease = task_leases.c
    running = select(_execution.id).where(
        _execution.id == lease.task_execution_id,
        _execution.status == word(TaskStatus.RUNNING),
        _execution.lease_token == lease.lease_token,
        _execution.worker_id == lease.worker_id,
    )
    return select(lease.task_execution_id.label("id")).where(~running.exists())


def _status_differs(_: Grammar) -> Select[Any]:
    last = (
        select(_event.task_execution_id, func.max(_event.sequence_num).label("sequence_num"))
        .where(_transition)
        .group_by(_event.task_execution_id)
        .subquery("last")
    )
    says = case(*((_event.event_type == word(kind), word(status)) for kind, status in STATUS_AFTER.items()))
    return (
        select(_execution.id)
        .join_from(task_executions, last, last.c.task_execution_id == _execution.id)
        .join(execution_events, _event.sequence_num == last.c.sequence_num)
        .where(_execution.status != says)
    )


def _birth_not_once(_: Grammar) -> Select[Any]:
    births = select(func.count()).where(
        _event.task_execution_id == _execution.id,
        _event.lease_token.is_(None),
        _event.event_type == word(EventType.CREATED),
    )
    return select(_execution.id).where(births.scalar_subquery() != 1)


def _token_differs(_: Grammar) -> Select[Any]:
    claims = select(func.count()).where(
        _event.task_execution_id == _execution.id, _event.event_type == word(EventType.CLAIMED)
    )
    return select(_execution.id).where(_execution.lease_token != claims.scalar_subquery())


def _more_than_one(kind: ColumnElement[bool]) -> Select[Any]:
    return (
        select(_event.task_execution_id.label("id"))
        .where(kind)
        .group_by(_event.task_execution_id, _event.lease_token)
        .having(func.count() > 1)
    )


def _end_without_claim(_: Grammar) -> Select[Any]:
    claimed = execution_events.alias("claimed")
    begun = select(claimed.c.sequence_num).where(
        claimed.c.task_execution_id == _event.task_execution_id,
        claimed.c.lease_token == _event.lease_token,
        claimed.c.event_type == word(EventType.CLAIMED),
    )
    no_end = _event.event_type.not_in([word(kind) for kind in sorted(ENDS_CLAIM)])
    return select(_event.task_execution_id.label("id")).where(
        _event.event_type != word(EventType.CLAIMED),
        _event.lease_token.is_not(None),
        or_(no_end, ~begun.exists()),
    )


def _claim_left_open(_: Grammar) -> Select[Any]:
    ended = execution_events.alias("ended")
    end = select(ended.c.sequence_num).where(
        ended.c.task_execution_id == _event.task_execution_id,
        ended.c.lease_token == _event.lease_token,
        ended.c.event_type != word(EventType.CLAIMED),
        ended.c.lease_token.is_not(None),
    )
    open_now = and_(_execution.status == word(TaskStatus.RUNNING), _execution.lease_token == _event.lease_token)
    return (
        select(_execution.id)
        .join_from(execution_events, task_executions, _execution.id == _event.task_execution_id)
        .where(_event.event_type == word(EventType.CLAIMED), open_now == end.exists())
    )


def _life_after_end(_: Grammar) -> Select[Any]:
    before = func.lag(_event.event_type).over(partition_by=_event.task_execution_id, order_by=_event.sequence_num)
    steps = (
        select(_event.task_execution_id.label("id"), _event.event_type, before.label("before"))
        .where(_transition)
        .subquery("steps")
    )
    ends = [word(kind) for kind, status in STATUS_AFTER.items() if status in TERMINAL]
    failed = [word(kind) for kind, status in STATUS_AFTER.items() if status is TaskStatus.FAILED]
    again = [word(EventType.REQUEUED), word(EventType.RETRY_SCHEDULED), word(EventType.DISCARDED)]
    by_hand = and_(steps.c.before.in_(failed), steps.c.event_type.in_(again))
    return select(steps.c.id).where(steps.c.before.in_(ends), ~by_hand)


def _claimed_early(g: Grammar) -> Select[Any]:
    due = g.instant_in(_event.event_data, "available_at")
    before = func.lag(due).over(partition_by=_event.task_execution_id, order_by=_event.sequence_num)
    steps = (
        select(_event.task_execution_id.label("id"), _event.event_type, _event.created_at, before.label("due"))
        .where(_transition)
        .subquery("steps")
    )
    return select(steps.c.id).where(
        steps.c.event_type == word(EventType.CLAIMED), or_(steps.c.due.is_(None), steps.c.created_at < steps.c.due)
    )


def _recovered_early(g: Grammar) -> Select[Any]:
    recovered = [word(EventType.RESET), word(EventType.ABANDONED)]
    expired = g.instant_in(_event.event_data, "lease_expires_at")
    return select(_event.task_execution_id.label("id")).where(
        _event.event_type.in_(recovered), or_(expired.is_(None), _event.created_at < expired)
    )


def _key_without_task(_: Grammar) -> Select[Any]:
    key = idempotency_keys.c
    task = select(_execution.id).where(_execution.id == key.task_execution_id)
    return select(key.task_execution_id.label("id")).where(~task.exists())


def _repair_ready(g: Grammar) -> Transition:
    """Put the entry back, due when the last event says."""
    last = (
        select(g.instant_in(_event.event_data, "available_at"))
        .where(_event.task_execution_id == _execution.id, _transition)
        .order_by(_event.sequence_num.desc())
        .limit(1)
        .scalar_subquery()
    )

    def entry(_: Relations) -> Statement:
        same = ("id", "queue", "priority", "partition_key", "position", "event_type", "expires_at")
        rows = (
            select(*(_execution[name] for name in same), func.coalesce(last, g.now, type_=Instant), g.now)
            .where(_execution.status == word(TaskStatus.READY), ~_entry_of_task.exists())
            .with_for_update(of=task_executions)
        )
        columns = ["task_execution_id", *same[1:], "available_at", "created_at"]
        new = g.insert(task_outbox).from_select(columns, rows)
        return new.on_conflict_do_nothing().returning(task_outbox.c.task_execution_id.label("id"))  # type: ignore[no-any-return]

    return Transition(name="repair_ready_without_entry", steps={"entry": entry}, returns="entry")


def _repair_entry(_: Grammar) -> Transition:
    ready = select(_execution.id).where(
        _execution.id == task_outbox.c.task_execution_id, _execution.status == word(TaskStatus.READY)
    )
    gone = delete(task_outbox).where(~ready.exists()).returning(task_outbox.c.task_execution_id.label("id"))
    return Transition(name="repair_entry_without_ready", steps={"gone": lambda _: gone}, returns="gone")


def _repair_running(g: Grammar) -> Transition:
    """Give the task a lease that has run out, so that the next recovery takes it back and counts it."""
    columns = ["task_execution_id", "queue", "lease_token", "worker_id", "lease_expires_at"]

    def lease(_: Relations) -> Statement:
        rows = (
            select(_execution.id, _execution.queue, _execution.lease_token, _execution.worker_id, g.now)
            .where(_execution.status == word(TaskStatus.RUNNING), ~_lease_of_task.exists())
            .with_for_update(of=task_executions)
        )
        new = g.insert(task_leases).from_select(columns, rows)
        return (  # type: ignore[no-any-return]
            new.on_conflict_do_update(
                index_elements=[task_leases.c.task_execution_id],
                set_={name: new.excluded[name] for name in columns[1:]},
            ).returning(task_leases.c.task_execution_id.label("id"))
        )

    return Transition(name="repair_running_without_lease", steps={"lease": lease}, returns="lease")


def _repair_lease(_: Grammar) -> Transition:
    running = select(_execution.id).where(
        _execution.id == task_leases.c.task_execution_id, _execution.status == word(TaskStatus.RUNNING)
    )
    gone = delete(task_leases).where(~running.exists()).returning(task_leases.c.task_execution_id.label("id"))
    return Transition(name="repair_lease_without_running", steps={"gone": lambda _: gone}, returns="gone")
