"""Define the CHECK constraints of the tables. They refuse rows whose values would break a claim, a recovery, the end of
a task or a wait. On PostgreSQL, the column types refuse most of these rows (`column_types.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import CheckConstraint, Column, Uuid
from sqlalchemy.types import TypeEngine

from ..model import EARLIEST, LATEST, MAX_ATTEMPT, MAX_NUMBER
from .column_types import Attempts, BoundedInstant, Number, Recoveries, Seconds


def of(table: str, columns: Iterable[Column[Any]]) -> list[CheckConstraint]:
    """Return the CHECKs of one table, named according to the metadata's naming convention. Some exist only on SQLite."""
    both = [CheckConstraint(text, name=name) for name, text in _CHECKS.get(table, {}).items()]
    sqlite = [CheckConstraint(text, name=name).ddl_if(dialect="sqlite") for name, text in _of_types(table, columns)]
    return both + sqlite


def _of_types(table: str, columns: Iterable[Column[Any]]) -> Iterator[tuple[str, str]]:
    """Yield the CHECKs that PostgreSQL's types replace, each with its name. Each column has its own CHECK, because
    SQLite evaluates only the CHECKs of changed columns.
    """
    if (others := _IDS_AND_TEXTS.get(table)) is None:
        return
    for column in columns:
        if column.type in _BOUNDS and column.name not in _UNBOUNDED.get(table, ()):
            yield column.name, _BOUNDS[column.type].format(column.name)
        elif column.name in others:
            yield column.name, (_ID if isinstance(column.type, Uuid) else _TEXT).format(column.name)


TIMES_OF_TASKS = ("created_at", "expires_at", "first_started_at", "retry_at", "completed_at", "cancel_requested_at")
"""The times of a task that have a CHECK on SQLite. `verify` reads these times on both databases."""
_CHECKS = {
    "task_executions": {
        "status": (
            "CASE WHEN completed_at IS NULL THEN status = CASE WHEN worker_id IS NULL THEN 'Ready' ELSE 'Running' END "
            "ELSE worker_id IS NULL AND (status = 'Completed' OR status = 'Failed' OR status = 'Cancelled') END"
        ),
        "priority": "priority BETWEEN -100 AND 100",
        "names": "task_name <> '' AND queue <> '' AND partition_key <> ''",
        "on_dead_letter": "on_dead_letter = 'release' OR on_dead_letter = 'hold'",
    },
    "task_outbox": {"claimable": "priority BETWEEN -100 AND 100 AND queue <> '' AND partition_key <> ''"},
    "queue_settings": {
        "limits": "concurrency_limit >= 1 AND rate_limit >= 1 AND key_concurrency >= 1 AND key_rate_limit >= 1"
    },
    "task_steps": {"names": "name <> ''", "number": "number BETWEEN 1 AND 1000"},
    "task_schedules": {
        "names": "name <> '' AND task_name <> '' AND queue <> '' AND rule <> '' AND tz <> ''",
        "priority": "priority BETWEEN -100 AND 100",
        "on_dead_letter": "on_dead_letter = 'release' OR on_dead_letter = 'hold'",
        "overlap": "overlap = 'allow' OR overlap = 'queue' OR overlap = 'skip'",
        "catch_up": "catch_up_limit >= 1 AND (catch_up = 'none' OR catch_up = 'latest' OR catch_up = 'all')",
    },
    "inbox_messages": {"names": "consumer <> '' AND message_id <> ''"},
    "relays": {
        "names": "name <> ''",
        "shards": "shards BETWEEN 1 AND 64 AND failures >= 0",
        "on_refused": "on_refused = 'hold' OR on_refused = 'skip'",
    },
    "relay_messages": {"slot": "slot BETWEEN 0 AND 255"},
    "task_batches": {
        "kind": "kind = 'batch' OR kind = 'chain'",
        "on_failed": "on_failed = 'continue' OR on_failed = 'wait' OR on_failed = 'cancel'",
        "counts": "size >= 0 AND stage >= 0",
    },
}
"""The CHECKs for both databases."""
_IDS_AND_TEXTS: Mapping[str, tuple[str, ...]] = {
    "task_executions": (
        "id",
        "pipeline_execution_id",
        "task_name",
        "queue",
        "partition_key",
        "topic",
        "args",
        "headers",
    ),
    "task_outbox": ("task_execution_id", "queue", "partition_key", "topic"),
    "task_leases": (),
    "queue_settings": (),
    "task_schedules": ("name", "task_name", "args", "queue", "rule", "tz"),
    "schedule_ticks": ("task_execution_id",),
    "task_steps": ("task_execution_id", "name", "result"),
    "task_metrics": ("id", "queue", "task_name"),
    "queue_samples": ("queue",),
    "maintenance_jobs": (),
    "operator_actions": ("id", "target"),
    "key_rates": ("queue", "partition_key"),
    "inbox_messages": ("consumer", "source", "message_id"),
    "relays": ("name",),
    "relay_shards": (),
    "relay_messages": ("event_id", "relay", "topic", "partition_key", "headers", "payload"),
    "task_batches": ("id", "name", "then_tasks"),
}
"""The tables that have CHECKs on SQLite in place of PostgreSQL's types, each with its ids and texts that are checked.
In these tables, all columns with bounded types are checked too, except those in `_UNBOUNDED`.
"""
_UNBOUNDED: Mapping[str, tuple[str, ...]] = {
    "task_executions": ("started_at", "updated_at"),
    "task_outbox": ("created_at",),
    "queue_settings": ("updated_at",),
}
"""The columns with bounded types that are not checked."""
_ID, _TEXT = "length({0}) = 32 AND lower({0}) = {0} AND {0} < 'g'", "typeof({0}) <> 'blob'"
"""The CHECKs for ids and for texts. SQLite converts everything but a BLOB to text."""
_BOUNDS: Mapping[TypeEngine[Any], str] = {
    # With a character class such as [0-9] in the pattern, the check would take twenty times as long.
    BoundedInstant: (
        f"{{0}} GLOB '????-??-??T??:??:??.??????+00:00' AND {{0}} >= '{EARLIEST.year}' AND {{0}} < '{LATEST.year + 1}'"
    ),
    Seconds: "{0} > 0 AND {0} <= 3200000000",
    Attempts: f"{{0}} >= 1 AND {{0}} <= {MAX_ATTEMPT}",
    Recoveries: f"{{0}} >= 0 AND {{0}} <= {MAX_ATTEMPT}",
    Number: f"{{0}} >= 0 AND {{0}} <= {MAX_NUMBER}",
}
"""The CHECKs for the bounded types."""
