"""A worker's options: their forms, meanings, defaults and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from ..errors import ConfigurationError, InvalidArgument
from ..model import duration
from ..model.options import choice
from ..model.unknown_options import naming_options
from .failpoints import OnFailpoint, ignore_failpoint

if TYPE_CHECKING:
    from ..task import TaskRegistry

LAST_PORT = 65_535


class Isolation(StrEnum):
    """The place where a worker runs handlers."""

    THREAD = "thread"
    """One of the worker's threads."""
    PROCESS = "process"
    """A child process, which can be killed. The process runs one handler at a time."""


class WorkerOptions(TypedDict, total=False):
    """The options as callers pass them: durations are timedeltas or seconds. `WorkerSettings` describes each option."""

    queues: Sequence[str] | None
    topics: Sequence[str] | None
    concurrency: int
    prefetch: int | None
    poll: timedelta | float | None
    notifications: bool
    listen_url: str | None
    relay: bool
    drain_timeout: timedelta | float
    timeout_grace: timedelta | float
    isolation: Isolation | str
    tasks_per_child: int
    heartbeat: timedelta | float | None
    recover_every: timedelta | float
    unknown_task_delay: timedelta | float
    unknown_task_longest_delay: timedelta | float
    unknown_task_limit: timedelta | float
    max_tasks: int | None
    relaxed_durability: bool
    log_tracebacks: bool | None
    handler_log: bool
    label: str | None
    metrics_port: int | None
    metrics_host: str
    on_failpoint: OnFailpoint


def _at_least(least: int) -> Callable[[object, str], int]:
    def check(value: object, name: str) -> int:
        if type(value) is not int or value < least:
            raise InvalidArgument(f"{name} must be a whole number of at least {least}, not {value!r}")
        return value

    return check


def positive_span(value: timedelta | float, name: str) -> timedelta:
    """Return the span as a timedelta. Raises InvalidArgument unless the span is greater than zero."""
    span = duration(value, name)
    if span <= timedelta(0):
        raise InvalidArgument(f"{name} must be greater than zero, not {value!r}")
    return span


def _names(value: Sequence[str], name: str) -> list[str] | None:
    from ..store import queue_names

    return queue_names(value, name)


def _port(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value <= LAST_PORT:
        raise InvalidArgument(f"{name} must be a port from 0 to {LAST_PORT}, not {value!r}")
    return value


def _host(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"{name} must be a host name or an address, such as 127.0.0.1, not {value!r}")
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings:
    """The checked options of one worker. Each field is one option of `WorkerOptions`, with its default.

    If an option's value is not the default, the field's `check` is called with the option's name and the value. `check`
    returns the value to keep.
    """

    queues: Sequence[str] | None = field(default=None, metadata={"check": _names})
    """The queues to serve. None means all queues."""
    topics: Sequence[str] | None = field(default=None, metadata={"check": _names})
    """Run only tasks that handle events of these topics, given as exact names or patterns (``order.*``). None means all
    tasks.
    """
    concurrency: int = field(default=8, metadata={"check": _at_least(1)})
    """The number of handler threads."""
    prefetch: int | None = field(default=None, metadata={"check": _at_least(0)})
    """The maximum number of claims that may wait for a busy handler thread. None means the number of tasks that the
    handlers run in 50 ms at their recent pace. For slow handlers, this number is zero.
    """
    poll: timedelta | None = field(default=None, metadata={"check": positive_span})
    """The longest wait before the worker looks for tasks again. None means the default of `create_work_distributor`."""
    notifications: bool = True
    """Listen for notifications about new tasks in addition to polling. False means polling only."""
    listen_url: str | None = None
    """The address of the server itself, if the engine's address leads to a pooler. None means the engine's address."""
    relay: bool = True
    """If the code declares relays to brokers, publish their events. False means that `outboxq relay run` or other
    workers publish these events.
    """
    drain_timeout: timedelta = field(default=timedelta(seconds=25), metadata={"check": duration})
    """The time allowed for running tasks to finish when the worker stops."""
    timeout_grace: timedelta = field(default=timedelta(seconds=30), metadata={"check": duration})
    """With ``timeout_action="kill"``, the time from a handler's timeout until its process is killed."""
    isolation: Isolation = field(default=Isolation.THREAD, metadata={"check": partial(choice, Isolation)})
    """The place where handlers run: ``"thread"``, in threads of this process; or ``"process"``, each in a child
    process.
    """
    tasks_per_child: int = field(default=100, metadata={"check": _at_least(1)})
    """The number of tasks after which a child process is replaced, so that memory leaked by its handlers is freed."""
    heartbeat: timedelta | None = field(default=None, metadata={"check": positive_span})
    """The longest time between two heartbeats. None means a third of each lease."""
    recover_every: timedelta = field(default=timedelta(seconds=5), metadata={"check": positive_span})
    """The time between two checks for dead workers' tasks."""
    unknown_task_delay: timedelta = field(default=timedelta(seconds=15), metadata={"check": duration})
    """The delay after which a released unknown task is due again. The delay doubles with each release."""
    unknown_task_longest_delay: timedelta = field(default=timedelta(minutes=15), metadata={"check": duration})
    """The longest delay for an unknown task."""
    unknown_task_limit: timedelta = field(default=timedelta(days=1), metadata={"check": duration})
    """The time after which an unknown task is marked as failed."""
    max_tasks: int | None = field(default=None, metadata={"check": _at_least(1)})
    """Stop after this many tasks. None means never."""
    relaxed_durability: bool = False
    """Write outcomes without waiting for the database to flush them to disk. If the server (or, with SQLite, the
    machine) crashes, the most recent tasks may then run again, except for transactional tasks.
    """
    log_tracebacks: bool | None = None
    """The log records that include the exception of a failed attempt as `exc_info`. None means the records of final
    attempts, or all records if the level is DEBUG; True means all records, and False none. Messages and tracebacks may
    contain personal data.
    """
    handler_log: bool = True
    """With the outcome of each attempt, store the last lines that its handler logged at INFO and above: up to 200 lines
    and 64 KiB. The lines may contain personal data. False means that no lines are stored.
    """
    label: str | None = None
    """The worker's name, for people to read. None means the host name and the process id."""
    metrics_port: int | None = field(default=None, metadata={"check": _port})
    """The port on which the worker serves `/metrics` to Prometheus. 0 means a free port, which is logged. None means no
    port. A port requires the extra `prometheus`.
    """
    metrics_host: str = field(default="127.0.0.1", metadata={"check": _host})
    """The address on which `metrics_port` is opened. Anyone who can reach this address can read the names of queues and
    tasks.
    """
    on_failpoint: OnFailpoint = ignore_failpoint
    """A function that is called at each `Failpoint`, for tests."""

    @classmethod
    @naming_options("worker()", options=WorkerOptions.__annotations__)
    def of(cls, **options: Unpack[WorkerOptions]) -> Self:
        """Return the settings. Raises InvalidArgument for a value out of range."""
        checked: dict[str, Any] = dict(options)
        for one in fields(cls):
            if one.metadata and checked.get(one.name, one.default) is not one.default:
                checked[one.name] = one.metadata["check"](checked[one.name], one.name)
        return cls(**checked)

    @property
    def scope(self) -> dict[str, Any]:
        """The options that decide which tasks the worker claims, and how many at once."""
        return {"queues": self.queues, "topics": self.topics, "concurrency": self.concurrency}

    def check_leases(self, tasks: TaskRegistry) -> None:
        """Raise ConfigurationError for a task that would lose its lease if a single heartbeat were late."""
        for task in tasks:
            if self.heartbeat is not None and task.options.lease <= 2 * self.heartbeat:
                raise ConfigurationError(
                    f"the lease of task {task.name} ({task.options.lease}) must be longer than two heartbeats "
                    f"({2 * self.heartbeat}), because otherwise the lease would be lost if one heartbeat were late"
                )
