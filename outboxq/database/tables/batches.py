"""Define the tables of batches, and of the changes that an open transaction makes to them."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Identity, Index, Integer, Text, Uuid

from .. import bounds
from ..column_types import BigId, BoundedInstant, Xid8
from ..typed_table import TypedColumns, typed_table
from .metadata import AGGRESSIVE_VACUUM, metadata


class TaskBatchesColumns(TypedColumns):
    """A row for each batch and each chain. Its id is the `pipeline_execution_id` of its tasks.

    Triggers count the ends of its tasks and enqueue what follows, so the counts are right for every end: by another release, a
    person, plain SQL. The commit of an end locks the row.
    """

    id = Column(Uuid, primary_key=True)
    kind = Column(Text, nullable=False)
    name = Column(Text)
    on_failed = Column(Text, nullable=False)
    size = Column(Integer, nullable=False)  # tasks that are counted
    completed = Column(Integer, nullable=False)
    failed = Column(Integer, nullable=False)  # dead letters
    cancelled = Column(Integer, nullable=False)
    closed = Column(Boolean, nullable=False)  # False: the transaction that makes it is not over
    then_tasks = Column(Text)  # JSON array of the tasks that follow, one after the other; NULL: none
    stage = Column(Integer, nullable=False)  # how many of them are enqueued
    runs_then = Column(Boolean, nullable=False)  # False: a person cancelled the batch, so none of them follows
    cancel_requested_at = Column(BoundedInstant)
    created_at = Column(BoundedInstant, nullable=False)
    updated_at = Column(BoundedInstant, nullable=False)
    completed_at = Column(BoundedInstant)


task_batches = typed_table(
    "task_batches", metadata, TaskBatchesColumns, *bounds.of("task_batches"), storage={"fillfactor": 50}
)

_open = task_batches.c.completed_at.is_(None)
Index("ix_task_batches_open", task_batches.c.id, postgresql_where=_open, sqlite_where=_open)


class TaskBatchChangesColumns(TypedColumns):
    """A row for each change of a batch in a transaction that is open. A trigger counts and deletes them when it commits.

    On SQLite, which has one writer, each is counted at once.
    """

    id = Column(BigId, Identity(), primary_key=True)
    batch_id = Column(Uuid, nullable=False)
    added = Column(Integer, nullable=False)
    completed = Column(Integer, nullable=False)
    failed = Column(Integer, nullable=False)
    cancelled = Column(Integer, nullable=False)
    closes = Column(Boolean, nullable=False)
    changed_at = Column(BoundedInstant, nullable=False)
    # The migration for PostgreSQL sets a default that fills it, and an index. NULL on SQLite.
    xact_id = Column(Xid8().with_variant(Integer, "sqlite"))


task_batch_changes = typed_table(
    "task_batch_changes",
    metadata,
    TaskBatchChangesColumns,
    Index("ix_task_batch_changes_xact_id", "xact_id"),
    storage=AGGRESSIVE_VACUUM,
)
