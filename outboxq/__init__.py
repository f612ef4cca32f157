"""outboxq: a transactional outbox and task queue in your own database."""

from __future__ import annotations

from .context import TaskContext
from .distributor import PostgresDistributor, SqliteDistributor, WorkDistributor, create_work_distributor
from .engine import configure_sqlite
from .errors import (
    ConfigurationError,
    DuplicateTask,
    FileUnusable,
    InvalidArgument,
    InvalidCall,
    InvalidTarget,
    InvalidTransition,
    LeaseLost,
    OutboxqError,
    PayloadError,
    ReadOnly,
    SchemaOutOfDate,
    TaskNotFound,
    UnknownTask,
    UnsupportedDatabase,
)
from .folding import Fold
from .model import (
    Cancel,
    EventType,
    ExecutionEvent,
    Handle,
    OnConflict,
    OnDeadLetter,
    Retry,
    Snooze,
    TaskExecution,
    TaskStatus,
)
from .outbox import Outbox
from .retry import RetryPolicy
from .store import (
    Attempt,
    DeadLetter,
    Explanation,
    LiveWorker,
    QueueSettings,
    Reason,
    Statistics,
    Store,
    TailCursor,
    Violation,
)
from .subscriptions import Emitted, Subscription
from .task import Task
from .worker import Worker

__all__ = [
    "Attempt",  # what Store.attempts() returns
    "Cancel",
    "ConfigurationError",
    "DeadLetter",  # what Store.dead_letters() returns
    "DuplicateTask",
    "Emitted",  # what Outbox.emit() returns
    "EventType",
    "ExecutionEvent",
    "Explanation",  # what Store.explain() returns
    "FileUnusable",
    "Fold",  # what Store.state_at() returns
    "Handle",
    "InvalidArgument",
    "InvalidCall",
    "InvalidTarget",
    "InvalidTransition",
    "LeaseLost",
    "LiveWorker",  # what Store.workers() returns
    "OnConflict",  # for on_conflict=, where a string will not do
    "OnDeadLetter",  # for on_dead_letter=, likewise
    "Outbox",
    "OutboxqError",
    "PayloadError",
    "PostgresDistributor",
    "QueueSettings",  # what Store.pause(), limit() and queue_settings() return
    "ReadOnly",
    "Reason",  # what a program compares Explanation.reason with
    "Retry",
    "RetryPolicy",
    "SchemaOutOfDate",
    "Snooze",
    "SqliteDistributor",
    "Statistics",  # what Store.stats() returns
    "Store",  # outbox.store, for the signatures of functions that are given it
    "Subscription",  # what Store.subscribe() takes: a consumer without a declared task
    "TailCursor",  # a stored place in the log is read by TailCursor.parse()
    "Task",
    "TaskContext",
    "TaskExecution",
    "TaskNotFound",
    "TaskStatus",
    "UnknownTask",
    "UnsupportedDatabase",
    "Violation",  # what Store.verify() returns
    "WorkDistributor",
    "Worker",
    "configure_sqlite",
    "create_work_distributor",
]
