"""Enqueued tasks, a test's description of a task, and the differences between the two."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from ..errors import InvalidCall, PayloadError, UnknownTask
from ..model import ExecutionEvent, TaskExecution, TaskStatus, duration
from ..payload.parameters import dump_payload
from ..store.arguments import aware
from ..task import Task, TaskRegistry

_LISTED = 10
_ABOUT = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True)
class Enqueued:
    """An enqueued task execution."""

    id: UUID
    task_name: str
    args: Mapping[str, Any]
    """The arguments as the handler gets them; as JSON if this process does not know the task."""
    queue: str
    priority: int
    partition_key: str | None
    topic: str | None
    """Topic of the emitted event that the task handles."""
    status: TaskStatus
    attempt: int
    created_at: datetime
    stored: Mapping[str, Any] = field(repr=False)
    """`args` as JSON."""
    history: Callable[[], Sequence[ExecutionEvent]] = field(repr=False, compare=False)

    @cached_property
    def available_at(self) -> datetime:
        """The moment at which the task was due at first."""
        first = next((one.event_data.get("available_at") for one in self.history()), None)
        return self.created_at if first is None else datetime.fromisoformat(first)

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.args.items())
        parts = [f"queue={self.queue!r}", self.status.value]
        if self.priority:
            parts.insert(1, f"priority={self.priority}")
        if self.partition_key is not None:
            parts.insert(1, f"partition_key={self.partition_key!r}")
        if (delay := self.available_at - self.created_at) > timedelta(0):
            parts.insert(1, f"delay={_seconds(delay)}")
        return f"{self.task_name}({given})  {', '.join(parts)}"


class Expected:
    """A task as a test describes it; an option that is left out matches any value."""

    def __init__(
        self,
        tasks: TaskRegistry,
        task: Task[..., Any] | str | None,
        args: tuple[Any, ...],
        *,
        kwargs: Mapping[str, Any] | None = None,
        queue: str | None = None,
        priority: int | None = None,
        partition_key: str | None = None,
        topic: str | None = None,
        status: TaskStatus | str | None = None,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        **named: Any,
    ) -> None:
        """Describe a task; `named` and `kwargs` are its keyword arguments. Raises InvalidCall for those that it does not take."""
        if isinstance(task, str) and task in tasks:
            task = tasks.get(task)
        self.name = task.name if isinstance(task, Task) else task
        self._signature = _signature(task) if isinstance(task, Task) else None
        self._args = self._named(args, dict(kwargs or {}), named)
        self._delay = None if delay is None else duration(delay, "delay")
        self._at = None if at is None else aware(at, "at")
        columns = {
            "queue": queue,
            "priority": priority,
            "partition_key": partition_key,
            "topic": topic,
            "status": None if status is None else TaskStatus(status),
        }
        self._columns = {name: value for name, value in columns.items() if value is not None}

    def misfits(self, found: Enqueued) -> list[str]:
        """Return the differences between `found` and this description; empty: there are none."""
        if self.name is not None and found.task_name != self.name:
            return ["another task"]
        differ = [self._argument(name, value, found) for name, value in self._args.items()]
        for name, value in self._columns.items():
            actual = getattr(found, name)
            differ.append(None if value == actual else f"{name} is {_shown(actual)}, not {_shown(value)}")
        if self._delay is not None:
            delay = found.available_at - found.created_at
            differ.append(
                None
                if abs(delay - self._delay) < _ABOUT
                else f"delay is {_seconds(delay)}, not {_seconds(self._delay)}"
            )
        if self._at is not None:
            due = found.available_at
            differ.append(None if abs(due - self._at) < _ABOUT else f"it was due at {due}, not {self._at}")
        return [one for one in differ if one is not None]

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._args.items())
        parts = [f"{name}={_shown(value)}" for name, value in self._columns.items()]
        if self._delay is not None:
            parts.append(f"delay={_seconds(self._delay)}")
        if self._at is not None:
            parts.append(f"at={self._at}")
        call = f"{self.name or 'a task'}({given})" if given else self.name or "a task"
        return f"{call} with {', '.join(parts)}" if parts else call

    def _argument(self, name: str, value: object, found: Enqueued) -> str | None:
        if name in found.args:
            actual = found.args[name]
        elif self._signature is not None and self._signature.parameters[name].default is not inspect.Parameter.empty:
            actual = self._signature.parameters[name].default  # defaults are not stored
        else:
            return f"{name} was not given"
        if value == actual or (name in found.stored and _as_json(value) == found.stored[name]):
            return None
        return f"{name} is {actual!r}, not {value!r}"

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
        if self._signature is None:
            if args or named:
                parts = ", ".join([*map(repr, args), *named])
                raise InvalidCall(
                    f"{parts}: arguments can be matched like this only for a task that this process has declared; describe them by "
                    "kwargs={…}"
                )
            return kwargs
        try:
            return dict(self._signature.bind_partial(*args, **kwargs, **named).arguments)
        except TypeError as misfit:
            known = ", ".join(self._signature.parameters) or "none"
            raise InvalidCall(
                f"{self.name}: {misfit}; its parameters are: {known}; a task is also described by {_DESCRIBED}"
            ) from None


_DESCRIBED = "queue, priority, partition_key, topic, status, delay, at"


def enqueued_of(row: TaskExecution, tasks: TaskRegistry, history: Callable[[], Sequence[ExecutionEvent]]) -> Enqueued:
    stored = json.loads(row.args)
    try:
        args = tasks.get(row.task_name).parameters.load(row.args)
    except (UnknownTask, PayloadError):
        args = stored
    return Enqueued(
        id=row.id,
        task_name=row.task_name,
        args=args,
        queue=row.queue,
        priority=row.priority,
        partition_key=row.partition_key,
        topic=row.topic,
        status=row.status,
        attempt=row.attempt,
        created_at=row.created_at,
        stored=stored,
        history=history,
    )


def listed(found: Sequence[Enqueued], expected: Expected | None = None) -> str:
    """Return a line for each task; with `expected`, the nearest first and with the differences."""
    if not found:
        return "Nothing was enqueued in this test, as far as its transaction sees."
    if expected is None:
        lines, order = [str(one) for one in found], ""
    else:
        near = sorted(((expected.misfits(one), one) for one in found), key=lambda pair: _distance(pair[0]))
        lines = [f"{one}{'  <- ' if differ else ''}{'; '.join(differ)}" for differ, one in near]
        order = ", the nearest first" if len(lines) > 1 else ""
    more = [f"… and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return "\n  ".join([f"What was{order}:", *lines[:_LISTED], *more])


def _distance(differ: list[str]) -> tuple[bool, int]:
    return differ == ["another task"], len(differ)


def _signature(task: Task[..., Any]) -> inspect.Signature:
    signature = inspect.signature(task.function)
    parameters = list(signature.parameters.values())[int(task.takes_context) :]
    return signature.replace(parameters=parameters)


def _as_json(value: object) -> object:
    try:
        stored = dump_payload(value, name="an expected argument")
    except PayloadError:
        return _NOTHING
    return json.loads(stored)


_NOTHING = object()


def _shown(value: object) -> str:
    return str(value.value) if isinstance(value, TaskStatus) else repr(value)


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():g} s"
