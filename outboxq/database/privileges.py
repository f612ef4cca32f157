"""List exactly the privileges that each kind of role needs on PostgreSQL.

In the tables where a producer reads or changes other producers' tasks, the producer has privileges on individual
columns only, so that it can neither read nor change those tasks' arguments. Tests prove that the list is right: they
run as these roles, once with all privileges, and once without each privilege in turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from ..model.options import OPTION_COLUMNS


class Role(StrEnum):
    """The purpose of a database role."""

    PRODUCER = "producer"
    """Enqueues tasks."""
    WORKER = "worker"
    """Runs tasks. If the worker's tasks enqueue other tasks, the role is also a producer."""
    VIEWER = "viewer"
    """Reads with commands such as `status`, `task list` and `verify`."""
    OPERATOR = "operator"
    """Reads and changes with commands such as `task cancel`, `failed redrive`, `queue pause`, `prune` and `verify
    --repair`.
    """
    MIGRATOR = "migrator"
    """Creates and upgrades the tables, and owns them."""


class Feature(StrEnum):
    """A feature that not all producers use."""

    EMIT = "emit"
    IDEMPOTENCY = "idempotency"
    REPLACE = "replace"
    """Replaces the task that holds the idempotency key (`on_conflict="replace"`). This includes IDEMPOTENCY."""
    RESULTS = "results"
    """Waits for the results of tasks, including other producers' tasks."""
    BATCHES = "batches"
    """Creates batches and chains, and adds tasks to batches."""
    INBOX = "inbox"
    """Accepts messages from other programs."""


class Privilege(StrEnum):
    SELECT = "SELECT"
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    USAGE = "USAGE"
    CREATE = "CREATE"


class Kind(StrEnum):
    TABLE = "TABLE"
    SEQUENCE = "SEQUENCE"
    SCHEMA = "SCHEMA"


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Right:
    """One privilege on one table, sequence or schema."""

    kind: Kind = Kind.TABLE
    name: str = ""
    """The name without its schema; "" for the schema itself."""
    privilege: Privilege
    columns: tuple[str, ...] = ()
    """The columns; empty means all columns."""


def rights(role: Role, features: Collection[Feature] = ()) -> tuple[Right, ...]:
    """Return the privileges that a role needs, starting with those on the schema. `features` are the features that a
    producer uses.
    """
    given = set(features) | ({Feature.IDEMPOTENCY} if Feature.REPLACE in features else set())
    named: dict[tuple[Kind, str, Privilege], list[tuple[str, ...]]] = {}
    of_features = [right for one in sorted(given) for right in _FEATURES[one]]
    of_several = [right for several, some in _TOGETHER.items() if several <= given for right in some]
    for right in (*_ROLES[role], *_on_every_table(role), *of_features, *of_several):
        named.setdefault((right.kind, right.name, right.privilege), []).append(right.columns)
    return (
        *_ON_SCHEMA[role],
        *(
            Right(
                kind=kind,
                name=name,
                privilege=privilege,
                columns=tuple(sorted({one for some in columns for one in some})) if all(columns) else (),
            )
            for (kind, name, privilege), columns in sorted(named.items())
        ),
    )


def _on(name: str, privileges: str) -> tuple[Right, ...]:
    """Return the privileges on a table, written as in a GRANT: ``SELECT (id, status), INSERT``."""
    found = []
    for part in privileges.replace(")", "").split("; "):
        privilege, _, columns = part.partition(" (")
        found.append(
            Right(name=name, privilege=Privilege(privilege), columns=tuple(columns.split(", ")) if columns else ())
        )
    return tuple(found)


def _on_every_table(role: Role) -> Iterator[Right]:
    """Yield an operator's privileges on all tables, or a viewer's on the tables that it reads."""
    if role in {Role.VIEWER, Role.OPERATOR}:
        from .tables import metadata  # imported here, because the help of a command does not need SQLAlchemy

        for name in sorted(metadata.tables):
            if role is Role.OPERATOR:
                yield from _on(name, _EVERYTHING)
            elif name not in {"inbox_messages", "sleeping_workers", "task_batch_changes"}:
                yield from _on(name, "SELECT")


_USE = (Right(kind=Kind.SCHEMA, privilege=Privilege.USAGE),)
_VERSION = _on("outboxq_alembic_version", "SELECT")
_DRAWS = (Right(kind=Kind.SEQUENCE, name="task_position", privilege=Privilege.USAGE),)
_COUNTS = (Right(kind=Kind.SEQUENCE, name="task_position", privilege=Privilege.SELECT),)
_EVERYTHING = "SELECT; INSERT; UPDATE; DELETE"

_ON_SCHEMA = {**dict.fromkeys(Role, _USE), Role.MIGRATOR: (*_USE, Right(kind=Kind.SCHEMA, privilege=Privilege.CREATE))}
_ROLES = {
    Role.PRODUCER: (
        *_VERSION,
        *_on("task_executions", "INSERT; SELECT (id, position)"),
        *_on("execution_events", "INSERT"),
        *_on("task_outbox", "INSERT; SELECT (task_execution_id, partition_key, position, available_at, expires_at)"),
        *_on("sleeping_workers", "SELECT (queue, session, wakes_at)"),
        *_DRAWS,
    ),
    Role.WORKER: (
        *_VERSION,
        # DELETE: it cancels the other tasks of a batch. Some of them may be dead letters.
        *_on("dead_letters", "SELECT (queue, task_execution_id); INSERT; DELETE"),
        *_on("execution_events", "SELECT; INSERT"),
        *_on("key_rates", _EVERYTHING),
        *_on("maintenance_jobs", "SELECT; INSERT; UPDATE"),
        *_on("partition_claims", _EVERYTHING),
        *_on("queue_samples", "SELECT; INSERT; DELETE"),
        *_on("queue_settings", _EVERYTHING),  # it pauses the queue of a relay whose endpoint is gone
        *_on("relay_messages", "SELECT; DELETE"),
        *_on("relay_shards", _EVERYTHING),
        *_on("relays", "SELECT; INSERT; UPDATE"),
        *_on("schedule_ticks", "SELECT; INSERT; DELETE"),
        *_on("sleeping_workers", _EVERYTHING),
        *_on("task_batches", "SELECT"),
        *_on("task_executions", "SELECT; INSERT; UPDATE"),  # INSERT: it plants the tasks of schedules
        *_on("task_leases", _EVERYTHING),
        *_on("task_metrics", "SELECT; INSERT; DELETE"),
        *_on("task_outbox", _EVERYTHING),
        *_on("task_schedules", "SELECT; INSERT; UPDATE"),
        *_on("task_steps", "SELECT; INSERT"),
        *_on("task_subscriptions", _EVERYTHING),
        *_on("workers", _EVERYTHING),
        *_DRAWS,
    ),
    Role.VIEWER: (*_VERSION, *_COUNTS),
    Role.OPERATOR: (
        *_VERSION,
        *_DRAWS,
        *_COUNTS,
        Right(kind=Kind.SEQUENCE, name="task_position", privilege=Privilege.UPDATE),
    ),
    Role.MIGRATOR: (),
}
_EVENT = (
    "created_at, event_data, event_type, lease_token, pipeline_execution_id, sequence_num, task_execution_id, worker_id"
)
_FEATURES = {
    Feature.EMIT: (
        *_on("task_subscriptions", "SELECT"),
        *_on("relay_messages", "INSERT; SELECT (event_id)"),
        *_on("task_executions", "SELECT (pipeline_execution_id, task_name)"),
    ),
    Feature.IDEMPOTENCY: (
        *_on("idempotency_keys", "INSERT"),
        *_on("idempotency_keys", "SELECT (scope, key, task_execution_id, expires_at, until_finished)"),
        *_on("idempotency_keys", "UPDATE (task_execution_id, expires_at, until_finished, created_at)"),
        *_on("task_executions", "SELECT (status)"),
        *_on("dead_letters", "SELECT (task_execution_id); UPDATE (lost_key)"),
    ),
    Feature.REPLACE: (
        *_on(
            "task_executions",
            "SELECT (attempt, expires_at, on_dead_letter, partition_key, pipeline_execution_id, priority, queue, "
            "recovery_attempts, task_name, topic)",
        ),
        *_on(
            "task_executions",
            "UPDATE (args, attempt, expires_at, headers, partition_key, recovery_attempts, retry_at, topic, updated_at, "
            f"{', '.join(OPTION_COLUMNS.values())})",
        ),
        *_on("execution_events", f"SELECT ({_EVENT})"),
        *_on("task_outbox", "DELETE; SELECT (queue); UPDATE (created_at)"),  # the last privilege allows FOR UPDATE
    ),
    Feature.RESULTS: (
        *_on("task_executions", "SELECT (attempt, last_error, result, status, task_name)"),
        *_on("execution_events", f"SELECT ({_EVENT})"),
    ),
    Feature.BATCHES: (
        *_on("task_batches", "INSERT; SELECT (id, completed_at, cancel_requested_at)"),
        *_on("task_batch_changes", "INSERT; SELECT (batch_id)"),
    ),
    Feature.INBOX: _on("inbox_messages", "INSERT; SELECT (consumer, source, message_id)"),
}
_TOGETHER = {
    frozenset({Feature.EMIT, Feature.IDEMPOTENCY}): _on("inbox_messages", "INSERT; SELECT (consumer)"),
    frozenset({Feature.RESULTS, Feature.BATCHES}): (  # to wait for the task that follows a batch, without its arguments
        *_on(
            "task_batches",
            "SELECT (cancelled, closed, completed, failed, kind, on_failed, runs_then, size, stage)",
        ),
        *_on("task_executions", "SELECT (pipeline_execution_id)"),
    ),
}
"""The privileges that a producer needs only for a combination of features."""
