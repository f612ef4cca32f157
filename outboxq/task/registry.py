"""An outbox's tasks by name, and what its code declares for them: schedules, receivers, and relays to brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import isfunction
from typing import Any

from ..errors import ConfigurationError, EventRefused, PublishFailed, UnknownTask
from ..model import TaskOptions
from ..model.cloud_events import CloudEvent
from ..model.relays import NewRelay
from ..model.schedules import NewSchedule
from ..model.subscriptions import EVERYTHING, Subscription
from ..model.transports import Confirmed, Refused, Source, Transport
from ..model.unknown_options import nearest
from ..webhooks import WebhookSource
from .task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Receiver:
    """A task for the messages from another program."""

    task: Task[..., Any]
    source: Source | WebhookSource
    topics: Sequence[Subscription]
    """The topics and patterns of the task's messages, and the parameter that receives their payload."""
    keep: timedelta
    """The minimum time for which the inbox remembers each message."""

    def takes(self, topic: str) -> bool:
        """Return whether the task is for messages with this topic."""
        return any(
            topic.startswith(one.topic[:-1]) if one.topic.endswith(EVERYTHING) else topic == one.topic
            for one in self.topics
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class BrokerConnection:
    """A transport, with the lock that a thread holds while it uses the transport."""

    transport: Transport = field(repr=False)
    lock: threading.Lock = field(repr=False)
    is_own: bool
    """True if no other shard and no other relay uses the transport."""

    def close(self) -> None:
        """Close the transport, unless other shards or relays use it."""
        if self.is_own:
            with suppress(Exception):
                self.transport.close()


@dataclass(kw_only=True, eq=False)
class BrokerRelay:
    """A relay to a broker, as declared in this process."""

    declared: NewRelay
    transport: Transport = field(repr=False)
    source: str
    timeout: timedelta
    options: TaskOptions
    """The options for the relay's dead letters."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """The lock that is held by the thread that uses the transport."""

    def connection(self) -> BrokerConnection:
        """Return a separate connection for a shard if the transport can be cloned, otherwise the shared one."""
        if (clone := getattr(self.transport, "clone", None)) is None:
            return BrokerConnection(transport=self.transport, lock=self.lock, is_own=False)
        return BrokerConnection(transport=clone(), lock=threading.Lock(), is_own=True)

    def publish_again(self, event: CloudEvent) -> None:
        """Publish one event whose dead letter was redriven. Raises EventRefused or PublishFailed."""
        seconds = self.timeout.total_seconds()
        if not self.lock.acquire(timeout=seconds):
            raise PublishFailed(f"the connection for relay {self.declared.name!r} was in use for {seconds:g} s")
        try:
            [outcome] = self.transport.publish([event], time.monotonic() + seconds)
        finally:
            self.lock.release()
        if isinstance(outcome, Refused):
            raise EventRefused(outcome.reason)
        if not isinstance(outcome, Confirmed):
            raise PublishFailed(outcome.reason)


class TaskRegistry:
    """One outbox's tasks, by name. Names are stored permanently, so a name must always mean the same task."""

    def __init__(self) -> None:
        self.version = ""
        """The version of the code that declares the tasks; "" if the code does not have one."""
        self.built_in: dict[str, Task[..., Any]] = {}
        """outboxq's own tasks, by name. Every worker knows them."""
        self.relays: dict[str, BrokerRelay] = {}
        """The relays to brokers, by name."""
        self._tasks: dict[str, Task[..., Any]] = {}
        self._schedules: dict[str, tuple[object, NewSchedule]] = {}
        self._receivers: dict[str, Receiver] = {}

    def add(self, task: Task[..., Any]) -> None:
        """Add a task. Raises ConfigurationError if its name is already taken.

        A module that is executed again, because its import failed halfway or because it is reloaded, replaces its own
        tasks.
        """
        if task.name in self.built_in:
            raise ConfigurationError(
                f"the name {task.name!r} belongs to one of outboxq's own tasks; choose another name="
            )
        known = self._tasks.get(task.name)
        if known is not None and not _is_again(known.function, task.function):
            raise ConfigurationError(
                f"two tasks are called {task.name!r}: {_where(known.function)} and {_where(task.function)}; give one of them "
                "another name="
            )
        self._tasks[task.name] = task
        self._receivers.pop(task.name, None)
        self._schedules = {name: one for name, one in self._schedules.items() if one[1].task_name != task.name}

    def add_schedule(self, schedule: NewSchedule, declarer: object) -> None:
        """Add a schedule that the task `declarer` declares in code. Raises ConfigurationError if its name is already
        taken.

        A module that is executed again replaces its own schedules.
        """
        before, known = self._schedules.get(schedule.name, (declarer, None))
        if known is not None and (known.task_name != schedule.task_name or before is declarer):
            raise ConfigurationError(
                f"two schedules are called {schedule.name!r}, for the tasks {known.task_name} and {schedule.task_name}; give "
                "one of them another name="
            )
        self._schedules[schedule.name] = declarer, schedule

    def add_receiver(self, receiver: Receiver) -> None:
        """Add the receiver of a task that has already been added."""
        self._receivers[receiver.task.name] = receiver

    @property
    def receivers(self) -> list[tuple[Source | WebhookSource, list[Receiver]]]:
        """Each source with its receivers."""
        found: dict[int, tuple[Source | WebhookSource, list[Receiver]]] = {}
        for one in self._receivers.values():
            found.setdefault(id(one.source), (one.source, []))[1].append(one)
        return list(found.values())

    @property
    def schedules(self) -> list[NewSchedule]:
        """The schedules that have been declared so far."""
        return [schedule for _, schedule in self._schedules.values()]

    def get(self, name: str) -> Task[..., Any]:
        """Return the task with this name. Raises UnknownTask if this process has not declared the task."""
        try:
            return self._tasks.get(name) or self.built_in[name]
        except KeyError:
            raise UnknownTask(
                f"task {name!r} is not registered in this process; import the module that declares it"
                f"{nearest(name, self._tasks)}"
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self._tasks or name in self.built_in

    def queues(self) -> set[str]:
        """Return the queues of the tasks that have been declared so far and of outboxq's own tasks."""
        return {task.options.queue for task in (*self, *self.built_in.values())}

    def snapshot(self) -> TaskRegistry:
        """Return a copy of the registry with the tasks that have been declared so far."""
        copy = TaskRegistry()
        vars(copy).update(vars(self), _tasks=dict(self._tasks))
        return copy

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter(self._tasks.values())


def _is_again(before: Callable[..., object], now: Callable[..., object]) -> bool:
    """Return whether `before` and `now` are the same function, from two executions of its module. In a single
    execution, two functions with the same name are on different lines.
    """
    if not (isfunction(before) and isfunction(now)) or "<" in before.__qualname__:
        return False
    same = (before.__module__, before.__qualname__) == (now.__module__, now.__qualname__)
    again = before.__globals__ is not now.__globals__ or before.__code__.co_firstlineno == now.__code__.co_firstlineno
    return same and again and before is not now


def _where(function: Callable[..., object]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
