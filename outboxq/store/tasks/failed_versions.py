"""The versions of the application whose workers ended tasks as dead letters, to find a release that is at fault."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from ...database.column_types import Instant
from ...database.dialects import Row
from ...database.grammar import Grammar, sql_literal
from ...database.tables import execution_events, task_executions, workers
from ...database.target import Target
from ...model import EventType
from ...model.wording import grouped

_FEWEST = 3
"""Minimum number of dead letters from which a version is blamed."""
_SHARE = 0.9
"""Minimum share of the dead letters of a version that is blamed."""
_BEFORE = timedelta(hours=1)
"""A worker that was last seen up to this long before the first failure counts: a rollout may have replaced it."""
_NAMED = 3
"""Maximum number of other versions in the sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailuresOfVersion:
    """A version of the application, and the number of the group's dead letters that its workers left."""

    version: str
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AtWork:
    """A version of the application at work: a task that its workers know, and when one of them was last seen."""

    version: str
    task_names: frozenset[str]
    last_seen_at: datetime


def read_at_work(target: Target, rows: Iterable[Row]) -> list[AtWork]:
    """Return the versions of the workers of the last week. Without a version in the rows of dead letters, no statement
    is sent.
    """
    if all(row["version"] is None for row in rows):
        return []
    return [
        AtWork(
            version=row["version"],
            task_names=frozenset(json.loads(row["task_names"])),
            last_seen_at=row["last_seen_at"],
        )
        for row in target.run(at_work)
    ]


def versions_of(task_name: str, rows: Sequence[Row], found: Iterable[AtWork]) -> tuple[FailuresOfVersion, ...]:
    """Return the versions that left these dead letters, the one with the most first, and those that left none although
    their workers knew the task. The rows must be sorted newest first.
    """
    counts = Counter(row["version"] for row in rows if row["version"] is not None)
    since = rows[-1]["failed_at"] - _BEFORE
    others = {one.version for one in found if task_name in one.task_names and one.last_seen_at >= since}
    every = {**dict.fromkeys(others, 0), **counts}
    return tuple(
        FailuresOfVersion(version=version, count=number)
        for version, number in sorted(every.items(), key=lambda one: (-one[1], one[0]))
    )


def blamed(versions: Sequence[FailuresOfVersion], count: int) -> str | None:
    """Return the version that left nearly all of these dead letters while others were at work. None if there is no such
    version.
    """
    if len(versions) < 2 or versions[0].count < max(_FEWEST, _SHARE * count):
        return None
    return versions[0].version


def blame(versions: Sequence[FailuresOfVersion], count: int) -> str | None:
    """Return the sentence about the version that is blamed: "all 412 failures came from version 2.4.1; 2.4.0 had none"."""
    if blamed(versions, count) is None:
        return None
    worst, *others = versions
    some = f"all {grouped(count)}" if worst.count == count else f"{grouped(worst.count)} of {grouped(count)}"
    had = ", ".join(f"{one.version} had {grouped(one.count) if one.count else 'none'}" for one in others[:_NAMED])
    return f"{some} failures came from version {worst.version}; {had}"


def version_of(dead_letter: Any) -> sa.ColumnElement[str]:
    """Return the version of the worker that claimed this dead letter last. NULL if the worker had none or is forgotten."""
    event, execution = execution_events.c, task_executions.c
    claim = sa.and_(
        event.task_execution_id == execution.id,
        event.lease_token == execution.lease_token,
        event.event_type == sql_literal(EventType.CLAIMED),
    )
    found = sa.select(workers.c.version).select_from(
        sa.join(task_executions, execution_events, claim).join(workers, workers.c.id == event.worker_id)
    )
    return found.where(execution.id == dead_letter.c.task_execution_id).correlate(dead_letter).scalar_subquery()


def at_work(_: Grammar) -> sa.Select[Any]:
    """Select the versions of all workers that are kept, with their tasks and the time at which one was last seen."""
    worker = workers.c
    last = sa.func.max(worker.last_seen_at, type_=Instant).label("last_seen_at")
    columns: tuple[sa.ColumnElement[Any], ...] = (worker.version, worker.task_names, last)
    return sa.select(*columns).where(worker.version.is_not(None)).group_by(worker.version, worker.task_names)
