"""outboxq: a transactional outbox and task queue in your own database.

Each name is imported when it is first used: a process that only enqueues does not pay for the worker, and `outboxq --help` not
for SQLAlchemy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import TaskContext
    from .database.engine import configure_sqlite
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
    from .model.replay import TaskState
    from .model.subscriptions import Emitted, Subscription
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
    from .task import Task
    from .worker.distributor import PostgresDistributor, SqliteDistributor, WorkDistributor, create_work_distributor
    from .worker.worker import Worker

__all__ = [
    "Attempt",  # returned by Store.attempts()
    "Cancel",
    "ConfigurationError",
    "DeadLetter",  # returned by Store.dead_letters()
    "DuplicateTask",
    "Emitted",  # returned by Outbox.emit()
    "EventType",
    "ExecutionEvent",
    "Explanation",  # returned by Store.explain()
    "FileUnusable",
    "Handle",
    "InvalidArgument",
    "InvalidCall",
    "InvalidTarget",
    "InvalidTransition",
    "LeaseLost",
    "LiveWorker",  # returned by Store.workers()
    "OnConflict",  # for on_conflict=, if a string is not enough
    "OnDeadLetter",  # for on_dead_letter=, likewise
    "Outbox",
    "OutboxqError",
    "PayloadError",
    "PostgresDistributor",
    "QueueSettings",  # returned by Store.pause(), limit() and queue_settings()
    "ReadOnly",
    "Reason",  # to compare with Explanation.reason
    "Retry",
    "RetryPolicy",
    "SchemaOutOfDate",
    "Snooze",
    "SqliteDistributor",
    "Statistics",  # returned by Store.stats()
    "Store",  # outbox.store, for annotations
    "Subscription",  # argument of Store.subscribe(), for a consumer without a declared task
    "TailCursor",  # TailCursor.parse() reads a stored position in the log
    "Task",
    "TaskContext",
    "TaskExecution",
    "TaskNotFound",
    "TaskState",  # returned by Store.state_at()
    "TaskStatus",
    "UnknownTask",
    "UnsupportedDatabase",
    "Violation",  # returned by Store.verify()
    "WorkDistributor",
    "Worker",
    "configure_sqlite",
    "create_work_distributor",
]

_NAMES = {
    "context": "TaskContext",
    "worker.distributor": "PostgresDistributor SqliteDistributor WorkDistributor create_work_distributor",
    "database.engine": "configure_sqlite",
    "errors": (
        "ConfigurationError DuplicateTask FileUnusable InvalidArgument InvalidCall InvalidTarget "
        "InvalidTransition LeaseLost OutboxqError PayloadError ReadOnly SchemaOutOfDate TaskNotFound "
        "UnknownTask UnsupportedDatabase"
    ),
    "model.replay": "TaskState",
    "model": "Cancel EventType ExecutionEvent Handle OnConflict OnDeadLetter Retry Snooze TaskExecution TaskStatus",
    "outbox": "Outbox",
    "retry": "RetryPolicy",
    "store": "Attempt DeadLetter Explanation LiveWorker QueueSettings Reason Statistics Store TailCursor Violation",
    "model.subscriptions": "Emitted Subscription",
    "task": "Task",
    "worker.worker": "Worker",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""The module of each name."""

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            found = getattr(import_module(f".{_HOMES[name]}", __name__), name)
            globals()[name] = found
            return found
        if not name.startswith("_"):
            try:
                return import_module(f".{name}", __name__)  # `outboxq.model.records`, without an import of it
            except ModuleNotFoundError as error:
                if error.name != f"{__name__}.{name}":
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        import datetime as dt

        # freezegun reads each attribute of each module. A module imported meanwhile would keep the frozen classes, and
        # SQLAlchemy has a table of types by class.
        is_frozen = dt.datetime.__module__ != "datetime"
        return sorted(globals() if is_frozen else {*globals(), *__all__})
