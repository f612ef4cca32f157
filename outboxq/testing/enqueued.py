"""Enqueued tasks, the description of a task that a test expects, and the differences between the two."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Protocol
from uuid import UUID

from ..errors import InvalidCall, PayloadError, UnknownTask
from ..model import Claim, ExecutionEvent, TaskExecution, TaskStatus, duration
from ..model.unknown_options import nearest
from ..payload.parameters import dump_payload
from ..store.arguments import aware
from ..task import Task, TaskRegistry

_COLUMNS = ("queue", "priority", "partition_key", "concurrency_key", "topic", "status")
"""The columns that a test can use to describe a task."""
_LISTED = 10
_ABOUT = timedelta(seconds=1)


class DjangoTask(Protocol):
    """A `django.tasks` task."""

    @property
    def module_path(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Enqueued:
    """An enqueued task execution."""

    id: UUID
    task_name: str
    args: Mapping[str, Any]
    """The arguments as the handler receives them, or as JSON if this process does not know the task."""
    queue: str
    priority: int
    partition_key: str | None
    concurrency_key: str | None
    topic: str | None
    """The topic of the emitted event that the task handles."""
    status: TaskStatus
    attempt: int
    created_at: datetime
    stored: Mapping[str, Any] = field(repr=False)
    """`args` as JSON."""
    history: Callable[[], Sequence[ExecutionEvent]] = field(repr=False, compare=False)

    @cached_property
    def available_at(self) -> datetime:
        """The time at which the task was first due."""
        first = next((one.event_data.get("available_at") for one in self.history()), None)
        return self.created_at if first is None else datetime.fromisoformat(first)

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.args.items())
        parts = [f"queue={self.queue!r}"]
        if (delay := self.available_at - self.created_at) > timedelta(0):
            parts.append(f"delay={_seconds(delay)}")
        others = {name: getattr(self, name) for name in ("partition_key", "concurrency_key", "priority")}
        parts += [f"{name}={value!r}" for name, value in others.items() if value not in (None, 0)]
        return f"{self.task_name}({given})  {', '.join([*parts, self.status.value])}"


class Expected:
    """The description of a task that a test expects. An option that is left out matches any value."""

    def __init__(
        self,
        tasks: TaskRegistry,
        task: Task[..., Any] | str | None,
        args: tuple[Any, ...],
        *,
        kwargs: Mapping[str, Any] | None = None,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        **described: Any,
    ) -> None:
        """Describe a task by its columns and its arguments. Raises InvalidCall for arguments that the task does not
        accept.
        """
        self._tasks = tasks
        if isinstance(task, str) and task in tasks:
            task = tasks.get(task)
        self.name = task.name if isinstance(task, Task) else task
        self._signature = task.call_signature() if isinstance(task, Task) else None
        columns = {name: described.pop(name, None) for name in _COLUMNS}
        self._columns = {name: value for name, value in columns.items() if value is not None}
        if "status" in self._columns:
            self._columns["status"] = TaskStatus(self._columns["status"])
        self._args = self._named(args, dict(kwargs or {}), described)
        self._delay = None if delay is None else duration(delay, "delay")
        self._at = None if at is None else aware(at, "at")

    def misfits(self, found: Enqueued) -> list[str]:
        """Return the differences between `found` and this description."""
        if self.name is not None and found.task_name != self.name:
            return ["another task"]
        differ = [self._argument(name, value, found) for name, value in self._args.items()]
        for name, value in self._columns.items():
            if value != (actual := getattr(found, name)):
                differ.append(f"{name} is {_shown(actual)}, not {_shown(value)}")
        if self._delay is not None:
            delay = found.available_at - found.created_at
            if abs(delay - self._delay) >= _ABOUT:
                differ.append(f"delay is {_seconds(delay)}, not {_seconds(self._delay)}")
        if self._at is not None and abs(found.available_at - self._at) >= _ABOUT:
            differ.append(f"it was due at {found.available_at}, not {self._at}")
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

    @property
    def is_declared(self) -> bool:
        """True if this process declares the task, or if the description does not name a task."""
        return self.name is None or self._signature is not None

    def ensure_known(self, found: Sequence[Enqueued], others: frozenset[str]) -> None:
        """Raise UnknownTask unless the name is that of a declared or enqueued task, or one of `others`."""
        __tracebackhide__ = True
        known = self._known(found) | others
        if self.name is not None and self.name not in known:
            raise UnknownTask(
                f"this process does not declare a task {self.name!r}, and none was enqueued{nearest(self.name, known) or '.'} If "
                f"another program declares it, write: assert not harness.enqueued({self.name!r})"
            )

    def hint(self, found: Sequence[Enqueued]) -> str:
        """Return "" or, if no declared or enqueued task has the expected name, a remark that names the most similar
        task.
        """
        known = self._known(found)
        if self.name is None or self.name in known:
            return ""
        return f" (this process does not declare such a task{nearest(self.name, known)})"

    def _known(self, found: Sequence[Enqueued]) -> set[str]:
        return {task.name for task in self._tasks} | {one.task_name for one in found}

    def _argument(self, name: str, value: object, found: Enqueued) -> str | None:
        if name in found.args:
            actual = found.args[name]
        elif self._signature is not None and self._signature.parameters[name].default is not inspect.Parameter.empty:
            actual = self._signature.parameters[name].default  # default values are not stored
        else:
            return f"{name} was not given"
        if value == actual or _is_stored_as(value, found.stored.get(name, actual)):
            return None
        return f"{name} is {actual!r}, not {value!r}"

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
        if self._signature is None:
            if args or named:
                parts = ", ".join([*map(repr, args), *named])
                raise InvalidCall(
                    f"{parts}: this way of describing arguments needs a task that this process has declared; describe them with "
                    f"kwargs={{…}}{nearest(self.name or '', {task.name for task in self._tasks})}"
                )
            return kwargs
        try:
            return dict(self._signature.bind_partial(*args, **kwargs, **named).arguments)
        except TypeError as misfit:
            known = ", ".join(self._signature.parameters) or "none"
            raise InvalidCall(
                f"{self.name}: {misfit}; its parameters are: {known}; you can also describe a task by {', '.join(_COLUMNS)}, "
                "delay, at"
            ) from None


def enqueued_of(row: TaskExecution, tasks: TaskRegistry, history: Callable[[], Sequence[ExecutionEvent]]) -> Enqueued:
    """Return a stored task in the form that tests use."""
    same = {one.name: getattr(row, one.name) for one in fields(Enqueued) if hasattr(row, one.name)}
    if row.concurrency_key is not None:
        same["partition_key"] = None
    return Enqueued(**{**same, "args": arguments_of(row, tasks)}, stored=json.loads(row.args), history=history)


def arguments_of(row: TaskExecution | Claim, tasks: TaskRegistry) -> Mapping[str, Any]:
    """Return the arguments as the handler receives them, or as JSON if they cannot be read or this process does not
    know the task.
    """
    try:
        return tasks.get(row.task_name).named_arguments(row.args)
    except (UnknownTask, PayloadError):
        return json.loads(row.args)  # type: ignore[no-any-return]


def listed(found: Sequence[Enqueued], expected: Expected | None = None) -> str:
    """Return one line for each task. With `expected`, the closest matches come first, and each line shows the
    differences.
    """
    if not found:
        return "This test's transaction sees no enqueued tasks."
    if expected is None:
        lines, order = [str(one) for one in found], ""
    else:
        near = sorted(
            ((expected.misfits(one), one) for one in found),
            key=lambda pair: (pair[0] == ["another task"], len(pair[0])),
        )
        lines = [f"{one}{'  <- ' if differ else ''}{'; '.join(differ)}" for differ, one in near]
        order = ", the closest first" if len(lines) > 1 else ""
    more = [f"… and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return "\n  ".join([f"What was{order}:", *lines[:_LISTED], *more])


def how_often(count: int) -> str:
    """Return how often something happened: "not at all", "once", "3 times"."""
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _is_stored_as(value: object, stored: object) -> bool:
    with suppress(PayloadError):
        return bool(json.loads(dump_payload(value, name="an expected argument")) == stored)
    return False


def _shown(value: object) -> str:
    return str(value.value) if isinstance(value, TaskStatus) else repr(value)


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():g} s"
