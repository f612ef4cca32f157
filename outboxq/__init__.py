"""outboxq: a transactional outbox and task queue in your own database."""

from __future__ import annotations

from .context import TaskContext
from .distributor import PostgresDistributor, SqliteDistributor, WorkDistributor, create_work_distributor
from .engine import configure_sqlite
from .errors import (
    ConfigurationError,
    DuplicateTask,
    InvalidArgument,
    InvalidCall,
    InvalidTarget,
    InvalidTransition,
    LeaseLost,
    OutboxqError,
    PayloadError,
    SchemaOutOfDate,
    TaskNotFound,
    UnknownTask,
    UnsupportedDatabase,
)
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
from .subscriptions import Emitted, Subscription
from .task import Task
from .worker import Worker

__all__ = [
    "Cancel",
    "ConfigurationError",
    "DuplicateTask",
    "Emitted",
    "EventType",
    "ExecutionEvent",
    "Handle",
    "InvalidArgument",
    "InvalidCall",
    "InvalidTarget",
    "InvalidTransition",
    "LeaseLost",
    "OnConflict",
    "OnDeadLetter",
    "Outbox",
    "OutboxqError",
    "PayloadError",
    "PostgresDistributor",
    "Retry",
    "RetryPolicy",
    "SchemaOutOfDate",
    "Snooze",
    "SqliteDistributor",
    "Subscription",
    "Task",
    "TaskContext",
    "TaskExecution",
    "TaskNotFound",
    "TaskStatus",
    "UnknownTask",
    "UnsupportedDatabase",
    "WorkDistributor",
    "Worker",
    "configure_sqlite",
    "create_work_distributor",
]
