"""outboxq: a transactional outbox and task queue in your own database."""

from __future__ import annotations

from .context import TaskContext
from .distributor import PostgresDistributor, SqliteDistributor, WorkDistributor, create_work_distributor
from .engine import configure_sqlite
from .errors import (
    ConfigurationError,
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
from .model import Cancel, EventType, ExecutionEvent, Handle, Retry, Snooze, TaskExecution, TaskStatus
from .outbox import Outbox
from .retry import RetryPolicy
from .task import Task
from .worker import Worker

__all__ = [
    "Cancel",
    "ConfigurationError",
    "EventType",
    "ExecutionEvent",
    "Handle",
    "InvalidArgument",
    "InvalidCall",
    "InvalidTarget",
    "InvalidTransition",
    "LeaseLost",
    "Outbox",
    "OutboxqError",
    "PayloadError",
    "PostgresDistributor",
    "Retry",
    "RetryPolicy",
    "SchemaOutOfDate",
    "Snooze",
    "SqliteDistributor",
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
