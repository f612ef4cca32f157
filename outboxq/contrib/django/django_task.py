"""Django's Task with outboxq's options, and a backend's OPTIONS in `TASKS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, NoReturn, Self

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from ...errors import OutboxqError, UnknownTask
from ...model import NewTask, OnConflict, TimeoutAction, duration
from ...model.options import NO_HEADERS, OPTION_COLUMNS, checked_action, choice, headers_as_json, times, written_options
from ...model.uuid7 import uuid7
from ...outbox import TaskSettings
from ...retry import RetryPolicy
from ...store import check
from ...task.task import CallOptions
from .compat import InvalidTask, InvalidTaskBackend, Task

_DECLARED = [
    name
    for name in TaskSettings.__annotations__
    if name not in {"name", "queue", "priority", "subscribe", "check_types"}
]
"""The options of `Outbox.task` that exist under the same names for a Django task, and in OPTIONS for all of a backend's
tasks.
"""
_CALL = [name for name in CallOptions.__annotations__ if name not in {"queue", "priority", "run_after"}]
"""The options of `Task.using` that a Django task has in addition to Django's own options."""
STORED_OF_A_CALL = {name: column for name, column in OPTION_COLUMNS.items() if name in _CALL}
"""The options in `_CALL` that are task options, each with the column that stores it."""


def _none_of(name: str, options: Iterable[str], *bases: type) -> Any:
    """Return a dataclass with these options, all of which default to None."""
    given = [(one, Any, field(default=None, hash=one != "headers")) for one in options]
    return make_dataclass(name, given, bases=bases, frozen=True, slots=True, kw_only=True)


_WithOptions: Any = _none_of("_WithOptions", dict.fromkeys([*_DECLARED, *_CALL]), Task)
_Defaults: Any = _none_of("_Defaults", _DECLARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxqTask(_WithOptions):
    """A `django.tasks` task with the options of `outboxq.Outbox.task` and `outboxq.Task.using`.

    If an option is None, the value in the backend's OPTIONS applies or, if there is none, outboxq's default.
    """

    # Django's own options, which have defaults from 6.1 on.
    priority: int = 0
    backend: str = "default"
    queue_name: str = "default"
    run_after: datetime | None = None
    takes_context: bool = False

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        **options: Any,
    ) -> Self:
        """Return a copy of the task with these options, which are the same as those of `outboxq.Task.using`. None
        leaves an option unchanged.

        Raises InvalidTask for a value out of range, and TypeError for an unknown option or one that belongs in the
        declaration.
        """
        if unknown := next((name for name in options if name not in _CALL), None):
            raise TypeError(f"using() got an unexpected keyword argument {unknown!r}")
        own = {"priority": priority, "queue_name": queue_name, "run_after": run_after, "backend": backend}
        return replace(self, **{name: value for name, value in (own | options).items() if value is not None})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the import path and the options set by `using()`. Importing the task restores the others, such as the
        retry policy.
        """
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _OF_THE_IMPORT}
        return _rebuilt, (self.module_path, given)


def task(function: Callable[..., Any] | None = None, *, backend: str = "default", **options: Any) -> Any:
    """Declare a task as Django's `@task` does, but with outboxq's options: ``@task(queue_name="mail",
    retry=RetryPolicy(…))``.

    In Django 6.1 and later, and in the backport, Django's own `@task` does the same for outboxq's backend. This
    function also works in Django 6.0. Other backends, such as those used in tests, ignore outboxq's options. Raises
    TypeError for an unknown option, and InvalidTask for a value out of range.
    """
    if "run_after" in options:
        raise TypeError("run_after applies to a single call; write task.using(run_after=…).enqueue(…)")
    declared = partial(OutboxqTask, backend=backend, **options)
    return declared(func=function) if function is not None else lambda f: declared(func=f)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options(_Defaults):
    """A backend's database, and the defaults for its tasks. Without a retry policy a task has only one attempt, as in
    Django.
    """

    database: str = "default"
    """The alias of the database in DATABASES."""
    modules: Sequence[str] = ()
    """Packages and modules that declare tasks but do not belong to an installed app."""

    @classmethod
    def of(cls, given: Mapping[str, Any], alias: str) -> Options:
        """Read OPTIONS. Raises InvalidTaskBackend for an unknown option or a value out of range."""
        known = [one.name for one in fields(cls)]
        if unknown := sorted(set(given) - set(known)):
            words = f"unknown OPTIONS: {', '.join(unknown)}; outboxq knows {', '.join(known)}"
            raise InvalidTaskBackend(f"TASKS[{alias!r}] has {words}")
        options = cls(**given)
        if isinstance(options.modules, str):
            raise InvalidTaskBackend(f"TASKS[{alias!r}]: modules takes a list; write [{options.modules!r}]")
        try:
            validate(unvalidated("OPTIONS.of.TASKS", backend=alias), options)
        except InvalidTask as error:
            raise InvalidTaskBackend(f"TASKS[{alias!r}]: {error}") from None
        return options


def declared_options(task: Any, defaults: Options) -> dict[str, Any]:
    """Return the `options`, `retry`, `transactional` and `timeout_action` of the outboxq task that runs a Django task.

    `defaults` are the backend's defaults. Without a retry policy a task has only one attempt, as in Django.
    """

    def chosen(name: str) -> Any:
        given = getattr(task, name, None)  # a plain Django Task does not have it
        return getattr(defaults, name) if given is None else given

    given = {name: value for name in _DECLARED if (value := chosen(name)) is not None}
    options = written_options({**given, "queue": task.queue_name, "priority": int(task.priority)})
    retry = given.get("retry")
    policy = RetryPolicy.never() if retry is None else RetryPolicy.of(retry)
    action, default = getattr(task, "timeout_action", None), defaults.timeout_action
    if action is None and default is not None and options.timeout is not None:
        action = default  # only for tasks with a timeout
    return {
        "options": options,
        "retry": policy,
        "transactional": bool(given.get("transactional")),
        "timeout_action": checked_action(action or TimeoutAction.ASK, options.timeout, "the task"),
    }


def call_options(task: Any) -> dict[str, Any]:
    """Return the options of `outboxq.Task.using` with which the task is enqueued."""
    given = {name: getattr(task, name, None) for name in _CALL}
    due = None if task.run_after is None else aware(task.run_after)
    options = {"queue": task.queue_name, "priority": int(task.priority), "run_after": due}
    return options | {name: value for name, value in given.items() if value is not None}


def validate(task: Any, defaults: Options) -> None:
    """Raise InvalidTask for a task that `enqueue` would refuse."""
    try:
        settings, options = declared_options(task, defaults)["options"], call_options(task)
        key = options.get("partition_key")
        new = NewTask(
            id=uuid7(),
            task_name=task.module_path,
            args="{}",
            **vars(settings.with_key(key)) | {"max_attempts": options.get("max_attempts")},
            partition_key=key,
            concurrency_key=options.get("concurrency_key"),
            idempotency_key=options.get("idempotency_key"),
            unique_for=None if "unique_for" not in options else duration(options["unique_for"], "unique_for"),
            unique_until_finished=options.get("unique_until_finished", False),
            headers=headers_as_json(options.get("headers", NO_HEADERS), f"task {task.module_path!r}"),
            on_conflict=choice(OnConflict, options.get("on_conflict", OnConflict.RETURN), "on_conflict"),
            **times(task.module_path, **{name: options.get(name) for name in ("delay", "run_after", "expires")}),
        )
        check(new)
    except OutboxqError as error:
        raise InvalidTask(str(error)) from None
    if new.on_conflict is OnConflict.SKIP:
        raise InvalidTask(
            f"{task.module_path}: with on_conflict='skip', enqueue() may have no result to return; "
            "use on_conflict='return'"
        )


def changed(task: Any, **changes: Any) -> Any:
    """Return a changed copy of the task. The copy is not validated, because the task may have been enqueued under other
    settings.
    """
    copy = object.__new__(type(task))
    for one in fields(task):
        object.__setattr__(copy, one.name, changes.get(one.name, getattr(task, one.name)))
    return copy


def unvalidated(path: str, **values: Any) -> OutboxqTask:
    """Return a task with this import path. The task is not validated, because a stored task may no longer be in the
    code.
    """

    def gone(*_: Any, **__: Any) -> NoReturn:
        raise UnknownTask(f"the task {path} no longer exists")

    gone.__module__, _, gone.__qualname__ = path.rpartition(".")
    gone.__name__ = gone.__qualname__
    given = {"func": gone, **values}
    task = object.__new__(OutboxqTask)
    for one in fields(OutboxqTask):
        object.__setattr__(task, one.name, given.get(one.name, one.default))
    return task


def aware(moment: datetime) -> datetime:
    """Return an aware datetime. With USE_TZ = False, Django's datetimes are naive and in TIME_ZONE."""
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment, timezone.get_default_timezone())


def local(moment: datetime | None) -> datetime | None:
    """Return a datetime in Django's form, which is naive if USE_TZ is False."""
    if moment is not None and not settings.USE_TZ:
        moment = timezone.make_naive(moment, timezone.get_default_timezone())
    return moment


def _rebuilt(path: str, given: dict[str, Any]) -> Any:
    declared = import_string(path)
    if not isinstance(declared, OutboxqTask):
        raise ValueError(f"{path} is no longer a task")  # noqa: TRY004 - as in Django's own Task
    return changed(declared, **given)


_OF_THE_IMPORT = {"func", "takes_context", *_DECLARED} - set(_CALL)
