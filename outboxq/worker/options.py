"""The options of a worker: what callers write, and the record of their meanings, defaults and limits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Self, TypedDict, Unpack, get_type_hints

from ..errors import ConfigurationError, InvalidArgument
from ..model import duration
from ..store import queue_names
from ..task import TaskRegistry
from .failpoints import OnFailpoint, ignore_failpoint


class WorkerOptions(TypedDict, total=False):
    """The options as callers write them: durations are timedeltas or seconds. `WorkerSettings` says what each one means."""

    queues: Sequence[str] | None
    topics: Sequence[str] | None
    concurrency: int
    prefetch: int | None
    poll: timedelta | float | None
    notifications: bool
    listen_url: str | None
    drain_timeout: timedelta | float
    heartbeat: timedelta | float | None
    recover_every: timedelta | float
    unknown_task_delay: timedelta | float
    unknown_task_longest_delay: timedelta | float
    unknown_task_limit: timedelta | float
    max_tasks: int | None
    relaxed_durability: bool
    log_tracebacks: bool | None
    label: str | None
    on_failpoint: OnFailpoint


def _at_least(least: int) -> Callable[[object, str], int]:
    def check(value: object, name: str) -> int:
        if type(value) is not int or value < least:
            raise InvalidArgument(f"{name} must be a whole number of at least {least}, not {value!r}")
        return value

    return check


def _positive(value: timedelta | float, name: str) -> timedelta:
    span = duration(value, name)
    if span <= timedelta(0):
        raise InvalidArgument(f"{name} must be greater than zero, not {value!r}")
    return span


_CHECKS: Mapping[str, Callable[[Any, str], object]] = {
    "queues": queue_names,
    "topics": queue_names,
    "concurrency": _at_least(1),
    "prefetch": _at_least(0),
    "poll": _positive,
    "drain_timeout": duration,
    "heartbeat": _positive,
    "recover_every": _positive,
    "unknown_task_delay": duration,
    "unknown_task_longest_delay": duration,
    "unknown_task_limit": duration,
    "max_tasks": _at_least(1),
}
"""Gets the value of an option and its name, and returns the value that is kept. A default of None is not checked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings:
    """The checked options of one worker. Each field is one option of `WorkerOptions`, with its default."""

    queues: Sequence[str] | None = None
    """The queues to work on. None: all."""
    topics: Sequence[str] | None = None
    """Run only tasks that handle events of these topics, exact or as patterns (``order.*``). None: all tasks."""
    concurrency: int = 8
    """The number of handler threads."""
    prefetch: int | None = None
    """The number of claims that may wait for a busy handler thread. None: what the handlers do in 50 ms at their recent pace,
    so none for slow handlers."""
    poll: timedelta | None = None
    """The longest wait between two looks for tasks. None: the distributor's own (`create_work_distributor`)."""
    notifications: bool = True
    """Wait for notifications of new tasks. False: only poll."""
    listen_url: str | None = None
    """The address of the server itself, where the engine's leads to a pooler. None: the engine's."""
    drain_timeout: timedelta = timedelta(seconds=25)
    """The time that running tasks have to finish when the worker stops."""
    heartbeat: timedelta | None = None
    """The longest time between two heartbeats. None: a third of each lease."""
    recover_every: timedelta = timedelta(seconds=5)
    """The time between two looks for tasks of dead workers."""
    unknown_task_delay: timedelta = timedelta(seconds=15)
    """The delay after which a task whose name this process does not know is due again. It doubles with each release."""
    unknown_task_longest_delay: timedelta = timedelta(minutes=15)
    """The longest such delay."""
    unknown_task_limit: timedelta = timedelta(days=1)
    """The time after which such a task fails."""
    max_tasks: int | None = None
    """Stop after this many tasks. None: never."""
    relaxed_durability: bool = False
    """Do not wait until the database has flushed an outcome to disk. After a crash of the server (SQLite: of the machine) the
    most recent tasks may run again, transactional tasks excepted."""
    log_tracebacks: bool | None = None
    """Give log records of failed attempts the exception as `exc_info`. None: those of last attempts, and at the level DEBUG all;
    True: all; False: none. Messages and tracebacks may hold personal data."""
    label: str | None = None
    """The name of the worker for people. None: host name and process id."""
    on_failpoint: OnFailpoint = ignore_failpoint
    """Called at each `Failpoint`, for tests."""

    @classmethod
    def of(cls, **options: Unpack[WorkerOptions]) -> Self:
        """Return the settings. Raises InvalidArgument for a value out of range."""
        checked: dict[str, Any] = dict(options)
        for one in fields(cls):
            if one.name in _CHECKS and checked.get(one.name, one.default) is not one.default:
                checked[one.name] = _CHECKS[one.name](checked[one.name], one.name)
        return cls(**checked)

    @property
    def scope(self) -> dict[str, Any]:
        """The options that say which tasks the worker takes, and how many at once."""
        return {"queues": self.queues, "topics": self.topics, "concurrency": self.concurrency}

    def check_leases(self, tasks: TaskRegistry) -> None:
        """Raise ConfigurationError for a task whose lease one late heartbeat would lose."""
        for task in tasks:
            if self.heartbeat is not None and task.options.lease <= 2 * self.heartbeat:
                raise ConfigurationError(
                    f"the lease of task {task.name} ({task.options.lease}) must be longer than two heartbeats "
                    f"({2 * self.heartbeat}), or one late beat loses it"
                )


def with_options(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature that names each option, in place of the one whose last parameter is ``**options``: for help()."""
    kinds = get_type_hints(WorkerOptions)
    options = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=kinds[one.name])
        for one in fields(WorkerSettings)
    ]
    return signature.replace(parameters=[*list(signature.parameters.values())[:-1], *options])
