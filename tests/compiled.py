"""The statements that nearly every worker runs.

A process that forks workers compiles these statements once. Otherwise, each worker would spend 0.2 s of CPU time on compiling them.
"""

from __future__ import annotations

from outboxq.database.dialects import dialect_for
from tests import builders

OF_WORKERS = (
    "broken_entries.claim_entries",
    "broken_entries.due_entries",
    "channel.answer",
    "channel.find",
    "channel.open_session",
    "channel.prove",
    "channel.wake",
    "claim.from_all",
    "claim.from_one",
    "due.any_due",
    "due.any_due_given",
    "due.next_available_at",
    "due.next_available_at_given",
    "ends.end",
    "ends.extend_leases",
    "ends.mark_begun",
    "fanout.subscriptions",
    "metrics.record",
    "overview.retention",
    "partition_keys.other_queues",
    "recovery.any_written_ahead",
    "recovery.expired",
    "recovery.outlasting",
    "recovery.recover_seen",
    "rights.missing",
    "schedules.schedules",
    "schedules.some_due",
    "schema.is_standby",
    "schema.version",
    "schema.version_columns",
    "sleeping_workers.announce",
    "sleeping_workers.announce_given",
    "sleeping_workers.forget",
    "sleeping_workers.forget_ended",
    "sleeping_workers.horizon",
    "sleeping_workers.look",
    "sleeping_workers.look_given",
    "sleeping_workers.withdraw",
    "steps.complete",
    "steps.of_task",
    "transactions.select_now",
    "unknown_runs.with_unknown_tasks",
    "workers.describe",
    "workers.end",
    "workers.forget",
    "workers.register",
    "workers.seen",
)


def compile_all() -> None:
    for database in ("sqlite", "postgresql"):
        compile_for(database)


def compile_for(database: str) -> None:
    """Compile the statements for `database`: sqlite or postgresql."""
    dialect = dialect_for(database, schema=None)  # the same arguments as a store's, because they are the cache key
    known = builders.of_database(database)
    for name in OF_WORKERS:
        if name in known:
            dialect.warm(known[name])
            _ = dialect.compiled[known[name]].sql  # the form without a batch
