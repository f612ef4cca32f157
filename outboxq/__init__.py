"""outboxq: a transactional outbox and task queue in your own database.

Each name is imported when it is first used, so a process that only enqueues does not import the worker, and `outboxq
--help` does not import SQLAlchemy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `as` tells type checkers that a name is public
    from .context import TaskContext as TaskContext
    from .database.engine import configure_sqlite as configure_sqlite
    from .errors import (
        BatchClosed as BatchClosed,
        BatchNotFound as BatchNotFound,
        ConfigurationError as ConfigurationError,
        DuplicateTask as DuplicateTask,
        EndpointGone as EndpointGone,
        EndpointRefused as EndpointRefused,
        EventRefused as EventRefused,  # the error in a dead letter, not raised by a call
        FileUnusable as FileUnusable,
        InvalidArgument as InvalidArgument,
        InvalidCall as InvalidCall,
        InvalidTarget as InvalidTarget,
        InvalidTransition as InvalidTransition,
        LeaseLost as LeaseLost,
        OutboxqError as OutboxqError,
        PayloadError as PayloadError,
        ProcessDied as ProcessDied,  # the error that ended an attempt, not raised by a call
        PublishFailed as PublishFailed,  # the error that ended an attempt, not raised by a call
        ReadOnly as ReadOnly,
        RelayNotFound as RelayNotFound,
        QueueNotFound as QueueNotFound,
        ScheduleNotFound as ScheduleNotFound,
        SchemaOutOfDate as SchemaOutOfDate,
        StepRefused as StepRefused,
        TaskCancelled as TaskCancelled,
        TaskFailed as TaskFailed,
        TaskNotFound as TaskNotFound,
        UnknownTask as UnknownTask,
        UnsupportedDatabase as UnsupportedDatabase,
        WaitRefused as WaitRefused,
        WebhookFailed as WebhookFailed,
        WebhookInvalid as WebhookInvalid,
        WorkerNotFound as WorkerNotFound,
    )
    from .integration.hooks import (
        Hook as Hook,
        Sending as Sending,  # argument of Hook.sending()
        WorkerInfo as WorkerInfo,  # argument of Hook.worker_started() and worker_stopped()
    )
    from .model import (
        Cancel as Cancel,
        EventType as EventType,
        ExecutionEvent as ExecutionEvent,
        Handle as Handle,
        OnConflict as OnConflict,  # for on_conflict=, if a string is not enough
        OnDeadLetter as OnDeadLetter,  # for on_dead_letter=, if a string is not enough
        Outcome as Outcome,  # argument of Hook.ended()
        Retry as Retry,
        Snooze as Snooze,
        TaskExecution as TaskExecution,
        TaskStatus as TaskStatus,
        TaskTimeout as TaskTimeout,  # raised in a handler, not by a call
        TimeoutAction as TimeoutAction,  # for timeout_action=, if a string is not enough
    )
    from .model.history import (
        TaskState as TaskState,  # returned by Store.log.state_at()
    )
    from .model.cloud_events import (
        CloudEvent as CloudEvent,  # argument of a custom endpoint's send()
    )
    from .model.relays import (
        OnRefused as OnRefused,  # for on_refused=, if a string is not enough
        Relay as Relay,  # returned by Store.relays.list()
    )
    from .model.transports import (
        Confirmed as Confirmed,  # the outcomes of a custom transport
        Refused as Refused,
        Transport as Transport,
        Unsure as Unsure,
    )
    from .model.batches import (
        Batch as Batch,  # returned by Store.batches.get()
        BatchCounts as BatchCounts,  # returned by OpenBatch.result() if the batch has no `then`
        BatchStatus as BatchStatus,  # to compare with Batch.status
        OnFailed as OnFailed,  # for on_failed=, if a string is not enough
    )
    from .model.subscriptions import (
        Emitted as Emitted,  # returned by Outbox.emit()
        Subscription as Subscription,  # argument of Store.subscriptions.replace(), for a consumer without a declared task
    )
    from .model.schedules import (
        CatchUp as CatchUp,  # for catch_up=, if a string is not enough
        Overlap as Overlap,  # for overlap=, if a string is not enough
        Schedule as Schedule,  # returned by Outbox.schedules.put() and list()
    )
    from .outbox import Outbox as Outbox
    from .retry import RetryPolicy as RetryPolicy
    from .store import (
        Attempt as Attempt,  # returned by Store.attempts()
        DeadLetter as DeadLetter,  # returned by Store.dead_letters.list()
        Explanation as Explanation,  # returned by Store.explain()
        LiveWorker as LiveWorker,  # returned by Store.workers.list()
        QueueSettings as QueueSettings,  # returned by Store.queues.pause(), limit() and settings()
        Reason as Reason,  # to compare with Explanation.reason
        Slow as Slow,  # for Store.slowest(by=…)
        Statistics as Statistics,  # returned by Store.stats()
        Store as Store,  # outbox.store, for annotations
        TailCursor as TailCursor,  # TailCursor.parse() reads a stored position in the log
        Violation as Violation,  # returned by Store.verify()
    )
    from .task import (
        BoundTask as BoundTask,  # returned by Task.using(), for annotations
        ContextTask as ContextTask,  # made by @outbox.task from a function that takes the context, for annotations
        Task as Task,
    )
    from .task.batches import (
        Chain as Chain,  # returned by Outbox.chain(), for annotations
        ChainHandle as ChainHandle,  # returned by Outbox.chain(…).enqueue(), for annotations
        OpenBatch as OpenBatch,  # given by `with Outbox.batch(…)`, for annotations
    )
    from .task.task import TaskCall as TaskCall  # returned by Task.call(), for annotations
    from .webhooks import (
        Webhook as Webhook,  # for Outbox.relay(to=…)
        WebhookSource as WebhookSource,  # for Outbox.receive(source=…)
        verify_webhook as verify_webhook,
    )
    from .worker.distributor import (
        PostgresDistributor as PostgresDistributor,
        SqliteDistributor as SqliteDistributor,
        WorkDistributor as WorkDistributor,
        create_work_distributor as create_work_distributor,
    )
    from .worker.worker import Worker as Worker

_NAMES = {
    "context": "TaskContext",
    "worker.distributor": "PostgresDistributor SqliteDistributor WorkDistributor create_work_distributor",
    "database.engine": "configure_sqlite",
    "errors": (
        "BatchClosed BatchNotFound ConfigurationError DuplicateTask EndpointGone EndpointRefused EventRefused FileUnusable InvalidArgument InvalidCall "
        "InvalidTarget "
        "InvalidTransition LeaseLost OutboxqError PayloadError ProcessDied PublishFailed QueueNotFound ReadOnly RelayNotFound ScheduleNotFound SchemaOutOfDate StepRefused "
        "TaskCancelled TaskFailed TaskNotFound UnknownTask UnsupportedDatabase WaitRefused WebhookFailed WebhookInvalid WorkerNotFound"
    ),
    "integration.hooks": "Hook Sending WorkerInfo",
    "model.history": "TaskState",
    "model": (
        "Cancel EventType ExecutionEvent Handle OnConflict OnDeadLetter Outcome Retry Snooze TaskExecution TaskStatus "
        "TaskTimeout TimeoutAction"
    ),
    "model.schedules": "CatchUp Overlap Schedule",
    "outbox": "Outbox",
    "retry": "RetryPolicy",
    "store": "Attempt DeadLetter Explanation LiveWorker QueueSettings Reason Slow Statistics Store TailCursor Violation",
    "model.cloud_events": "CloudEvent",
    "model.relays": "OnRefused Relay",
    "model.transports": "Confirmed Refused Transport Unsure",
    "model.batches": "Batch BatchCounts BatchStatus OnFailed",
    "model.subscriptions": "Emitted Subscription",
    "task": "BoundTask ContextTask Task",
    "task.batches": "Chain ChainHandle OpenBatch",
    "task.task": "TaskCall",
    "webhooks": "Webhook WebhookSource verify_webhook",
    "worker.worker": "Worker",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""The module that defines each name."""

if not TYPE_CHECKING:  # otherwise a type checker would accept any name
    __all__ = list(_HOMES)

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            found = getattr(import_module(f".{_HOMES[name]}", __name__), name)
            globals()[name] = found
            return found
        if not name.startswith("_"):
            try:
                return import_module(f".{name}", __name__)  # lets `outboxq.model.records` work without an import
            except ModuleNotFoundError as error:
                if error.name != f"{__name__}.{name}":
                    raise
        from .model.guesses import Guess, instead_of, replacement

        cure = "" if name.startswith("_") else replacement(Guess.NAME, __name__, name)
        # With a `name`, Python does not add its own guess, such as Chain for chain.
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}{instead_of(cure)}", name=name if cure else None
        )

    def __dir__() -> list[str]:
        import datetime as dt

        # freezegun reads each attribute of each module. A module imported meanwhile would keep freezegun's classes,
        # which SQLAlchemy does not know.
        is_frozen = dt.datetime.__module__ != "datetime"
        return sorted(globals() if is_frozen else [*(name for name in globals() if name.startswith("__")), *__all__])
