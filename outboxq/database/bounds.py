"""Define the CHECK constraints of the tables. They refuse rows whose values would break a claim, a recovery, the end of
a task or a wait. On PostgreSQL, the column types refuse most of these rows (`column_types.py`).
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint

from ..model import EARLIEST, LATEST, MAX_ATTEMPT, MAX_NUMBER

_ATTEMPT, _NUMBER = str(MAX_ATTEMPT), str(MAX_NUMBER)


def of(table: str) -> list[CheckConstraint]:
    """Return the CHECKs of one table, named according to the metadata's naming convention. Some exist only on SQLite."""
    both = [CheckConstraint(text, name=name) for name, text in _CHECKS.get(table, {}).items()]
    sqlite = [
        CheckConstraint(text, name=name).ddl_if(dialect="sqlite")
        for name, text in _SQLITE_CHECKS.get(table, {}).items()
    ]
    return both + sqlite


def _sqlite_instants(*columns: str) -> dict[str, str]:
    # With a character class such as [0-9] in the pattern, the check would take twenty times as long.
    return {
        column: f"{column} GLOB '????-??-??T??:??:??.??????+00:00' AND {column} >= '{EARLIEST.year}' AND {column} < '{LATEST.year + 1}'"
        for column in columns
    }


def _sqlite_numbers(least: str, most: str, *columns: str) -> dict[str, str]:
    return {column: f"{column} {least} AND {column} <= {most}" for column in columns}


def _sqlite_ids(*columns: str) -> dict[str, str]:
    return {column: f"length({column}) = 32 AND lower({column}) = {column} AND {column} < 'g'" for column in columns}


def _sqlite_texts(*columns: str) -> dict[str, str]:
    return {column: f"typeof({column}) <> 'blob'" for column in columns}  # SQLite converts everything else to text


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
_SQLITE_CHECKS = {
    "task_executions": {
        **_sqlite_ids("id", "pipeline_execution_id"),
        **_sqlite_texts("task_name", "queue", "partition_key", "topic", "args", "headers"),
        **_sqlite_instants(*TIMES_OF_TASKS),
        **_sqlite_numbers("> 0", "3200000000", "lease_seconds", "timeout_seconds"),
        **_sqlite_numbers(">= 1", _ATTEMPT, "attempt", "max_attempts"),
        **_sqlite_numbers(">= 0", _ATTEMPT, "recovery_attempts"),
        **_sqlite_numbers(">= 0", _NUMBER, "lease_token", "position"),
    },
    "task_outbox": {
        **_sqlite_ids("task_execution_id"),
        **_sqlite_texts("queue", "partition_key", "topic"),
        **_sqlite_instants("available_at", "expires_at"),
        **_sqlite_numbers(">= 0", _NUMBER, "position"),
    },
    "task_leases": {**_sqlite_instants("lease_expires_at"), **_sqlite_numbers(">= 0", _NUMBER, "lease_token")},
    "queue_settings": {
        **_sqlite_instants("rate_full_at", "paused_at"),
        **_sqlite_numbers("> 0", "3200000000", "rate_seconds", "key_rate_seconds"),
    },
    "task_schedules": {
        **_sqlite_texts("name", "task_name", "args", "queue", "rule", "tz"),
        **_sqlite_instants("starts_at", "ends_at", "planted_until", "paused_at", "created_at", "updated_at"),
        **_sqlite_numbers("> 0", "3200000000", "lease_seconds", "timeout_seconds", "grace_seconds", "jitter_seconds"),
        **_sqlite_numbers(">= 1", _ATTEMPT, "max_attempts"),
    },
    "schedule_ticks": {**_sqlite_ids("task_execution_id"), **_sqlite_instants("tick")},
    "task_steps": {
        **_sqlite_ids("task_execution_id"),
        **_sqlite_texts("name", "result"),
        **_sqlite_instants("due_at", "created_at"),
        **_sqlite_numbers(">= 0", _NUMBER, "lease_token"),
    },
    "task_metrics": {**_sqlite_ids("id"), **_sqlite_texts("queue", "task_name"), **_sqlite_instants("at")},
    "queue_samples": {**_sqlite_texts("queue"), **_sqlite_instants("at", "oldest_due_at")},
    "maintenance_jobs": {**_sqlite_instants("due_at", "done_at")},
    "operator_actions": {**_sqlite_ids("id"), **_sqlite_texts("target"), **_sqlite_instants("at")},
    "key_rates": {**_sqlite_texts("queue", "partition_key"), **_sqlite_instants("full_at")},
    "inbox_messages": {**_sqlite_texts("consumer", "source", "message_id"), **_sqlite_instants("expires_at")},
    "relays": {
        **_sqlite_texts("name"),
        **_sqlite_instants("paused_at", "failing_since", "next_try_at", "created_at"),
    },
    "relay_shards": {
        **_sqlite_instants("lease_expires_at"),
        **_sqlite_numbers(">= 0", _NUMBER, "lease_token"),
    },
    "relay_messages": {
        **_sqlite_ids("event_id"),
        **_sqlite_texts("relay", "topic", "partition_key", "headers", "payload"),
        **_sqlite_instants("created_at"),
    },
    "task_batches": {
        **_sqlite_ids("id"),
        **_sqlite_texts("name", "then_tasks"),
        **_sqlite_instants("cancel_requested_at", "created_at", "updated_at", "completed_at"),
    },
}
"""The CHECKs that PostgreSQL's types replace. Each column has its own CHECK, because SQLite evaluates only the CHECKs
of changed columns.
"""
