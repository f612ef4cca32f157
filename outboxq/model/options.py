"""A task's options as one record, a task's headers, and the parsing of values that callers pass. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeGuard, TypeVar

from ..errors import InvalidArgument

E = TypeVar("E", bound=StrEnum)

MAX_NAME = 200
"""The maximum number of characters in a name or a key. Names and keys become part of index entries."""
MAX_ATTEMPT = 2**31 - 2
"""The largest attempt number or recovery count in the tables. PostgreSQL's integer type can also store the next larger
number.
"""
LONGEST = timedelta(days=36500)
"""The longest lease, timeout or delay."""
MICROSECOND = timedelta(microseconds=1)


class OnDeadLetter(StrEnum):
    """The effect of a dead letter on its partition key."""

    RELEASE = "release"
    """The key's next task runs."""
    HOLD = "hold"
    """The key's later tasks wait until the dead letter is redriven or discarded."""


class TimeoutAction(StrEnum):
    """The action to take if a handler is still running after the task's timeout."""

    ASK = "ask"
    """The context reports the timeout, and the handler is expected to stop."""
    RAISE = "raise"
    """TaskTimeout is raised in the handler, and again every second until the handler stops."""
    KILL = "kill"
    """TaskTimeout is raised. If the handler is still running after the timeout grace, its process is killed."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """The options that `Outbox.task()` declares. `Task.using()` can replace some of them for a single enqueue.

    `NewTask` and `Subscription` inherit these fields, because the emitting process may never have imported the task.
    """

    queue: str = "default"
    """The queue in which the task waits."""
    priority: int = 0
    """-100 to 100. Tasks with a higher priority start first."""
    max_attempts: int | None = None
    """The maximum number of attempts, including the first. None means that the retry policy decides."""
    lease: timedelta = timedelta(seconds=60)
    """The time after which a dead worker's task is recovered. A live worker extends the lease."""
    timeout: timedelta | None = None
    """The run time after which the handler is told to stop. None means unlimited."""
    on_dead_letter: OnDeadLetter = OnDeadLetter.RELEASE
    """The effect on the partition key when the task becomes Failed."""

    def with_key(self, partition_key: str | None) -> TaskOptions:
        """Return the options for a task with this partition key. Without a key, `on_dead_letter` has no effect."""
        return replace(self, on_dead_letter=OnDeadLetter.RELEASE) if partition_key is None else self

    @property
    def options(self) -> dict[str, Any]:
        """The options by name, without a record's other fields."""
        return {name: getattr(self, name) for name in OPTION_COLUMNS}

    @property
    def stored(self) -> dict[str, Any]:
        """The stored value of each option, by column name."""
        return {column: in_column(getattr(self, name)) for name, column in OPTION_COLUMNS.items()}


OPTION_COLUMNS: Mapping[str, str] = {
    one.name: f"{one.name}_seconds" if str(one.type).startswith("timedelta") else one.name
    for one in fields(TaskOptions)
}
"""The column for each option. The column has the option's name, with `_seconds` appended for a span of time."""
OPTION_KINDS: Mapping[str, Callable[[Any], Any]] = {
    **{name: lambda seconds: timedelta(seconds=seconds) for name, column in OPTION_COLUMNS.items() if name != column},
    **{one.name: type(one.default) for one in fields(TaskOptions) if isinstance(one.default, StrEnum)},
}
"""The options that are neither strings nor numbers, with the functions that read them from their columns."""


def in_column(value: Any) -> Any:
    """Return a field's value as its column stores it: a span of time as seconds, an enum member as its value."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.value if isinstance(value, StrEnum) else value


def stored_options(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options stored in a row, as the fields of a record."""
    return {name: of_column(name, row[column]) for name, column in OPTION_COLUMNS.items()}


def of_column(name: str, value: Any) -> Any:
    """Return the value of the option with this name, given the `value` in its column."""
    return OPTION_KINDS[name](value) if name in OPTION_KINDS and value is not None else value


def written_options(given: Mapping[str, Any]) -> TaskOptions:
    """Return the options that a caller passed, as TaskOptions. Spans of time may be given in seconds, and enum members
    as their values.

    Raises InvalidArgument.
    """
    read = {name: given[name] for name in OPTION_COLUMNS if name in given}
    for name, value in read.items():
        kind = OPTION_KINDS.get(name)
        if value is not None and kind is not None:
            read[name] = choice(kind, value, name) if isinstance(kind, type) else duration(value, name)
    return TaskOptions(**read)


def check_options(options: TaskOptions, owner: str, **names: object) -> None:
    """Raise InvalidArgument if an option is out of range, or if one of the `names` cannot be stored. In error messages,
    `owner` stands for the owner of the options.
    """
    names["queue"] = options.queue
    for key, value in names.items():
        if not is_name(value):
            raise bad_name(key, owner, value)
    if type(options.priority) is not int or not -100 <= options.priority <= 100:
        raise InvalidArgument(f"priority of {owner} must be a whole number from -100 to 100")
    attempts = options.max_attempts
    if attempts is not None and (type(attempts) is not int or not 1 <= attempts <= MAX_ATTEMPT):
        raise InvalidArgument(f"max_attempts of {owner} must be a whole number of at least 1")
    if not is_span(options.lease, MICROSECOND):
        raise bad_span("lease", owner)
    if options.timeout is not None and not is_span(options.timeout, MICROSECOND):
        raise bad_span("timeout", owner)
    if type(options.on_dead_letter) is not OnDeadLetter:
        raise InvalidArgument(f"on_dead_letter of {owner} must be an OnDeadLetter")


def checked_action(value: TimeoutAction | str, timeout: timedelta | None, name: str) -> TimeoutAction:
    """Return the timeout action of the task with this name. Raises InvalidArgument if the action is unknown, or if it
    needs a timeout and there is none.
    """
    action = choice(TimeoutAction, value, "timeout_action")
    if action is not TimeoutAction.ASK and timeout is None:
        raise InvalidArgument(f"timeout_action={action.value!r} of {name} needs a timeout=")
    return action


def is_name(value: object) -> bool:
    return is_text(value) and 1 <= len(value) <= MAX_NAME


def is_text(value: object) -> TypeGuard[str]:
    """Return whether the value is a string that every database can store."""
    if not isinstance(value, str) or "\0" in value:
        return False
    if value.isascii():
        return True
    try:
        value.encode()  # takes a sixth of the time of a search for a lone surrogate
    except UnicodeEncodeError:
        return False
    return True


def is_span(value: object, shortest: timedelta) -> bool:
    """Return whether the value is a span that both databases can add to a time."""
    return isinstance(value, timedelta) and shortest <= value <= LONGEST


def bad_name(key: str, name: str, value: object = "") -> InvalidArgument:
    if not isinstance(value, str):
        return InvalidArgument(f"{key} of {name} must be a str, not {type(value).__name__}; write str(…)")
    return InvalidArgument(f"{key} of {name} must be 1 to {MAX_NAME} characters long, without NUL or lone surrogates")


def bad_span(key: str, name: str) -> InvalidArgument:
    return InvalidArgument(f"{key} of {name} must be a timedelta that is greater than zero and at most a hundred years")


def duration(value: timedelta | float, name: str) -> timedelta:
    """Return a timedelta or a number of seconds as a timedelta. Raises InvalidArgument for anything else."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"{name} takes a timedelta or seconds, not {type(value).__name__}")
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise InvalidArgument(f"{name} takes a finite span of time, not {value!r} seconds") from None


def times(
    name: str,
    *,
    delay: timedelta | float | None,
    run_after: datetime | None,
    expires: timedelta | float | datetime | None,
) -> dict[str, Any]:
    """Return the fields of a NewTask or NewEvent for `delay`, `run_after` and `expires`. Raises InvalidArgument."""
    if delay is not None and run_after is not None:
        raise InvalidArgument(f"{name}: give delay= or run_after=, not both")
    moment = expires if isinstance(expires, datetime) else None
    return {
        "available_at": run_after,
        "delay": timedelta(0) if delay is None else duration(delay, "delay"),
        "expires_at": moment,
        "expires_in": None if expires is None or isinstance(expires, datetime) else duration(expires, "expires"),
    }


def choice(kind: type[E], value: E | str, name: str) -> E:
    """Return the enum member for `value`, which is a member or its value. Raises InvalidArgument with a list of the
    allowed values.
    """
    if type(value) is kind:
        return value
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in kind)
        raise InvalidArgument(f"{name} must be one of {known}, not {value!r}") from None


MAX_HEADER_NAME = 100
"""The maximum number of characters in a header name."""
MAX_HEADERS = 8 * 1024
"""The maximum total size in bytes of a task's headers, as stored JSON."""
RESERVED = "outboxq-"
"""The prefix of header names that are reserved for outboxq, in any mixture of upper and lower case."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def headers_as_json(headers: Mapping[str, str], name: str) -> str | None:
    """Return the headers as they are stored; None if there are none. In error messages, `name` stands for the task or
    event.

    Names are kept as given and compared exactly. Raises InvalidArgument if the headers are not a mapping of strings, if
    a name is reserved or longer than 100 characters, or if the headers are larger than 8 KiB in total.
    """
    if not isinstance(headers, Mapping):
        raise InvalidArgument(
            f"headers of {name} must be a mapping of strings, such as {{'request-id': 'r1'}}, not {type(headers).__name__}"
        )
    for key, value in headers.items():
        if not is_text(key) or not 1 <= len(key) <= MAX_HEADER_NAME:
            raise InvalidArgument(
                f"the name {key!r:.42} in headers of {name} must be a string of 1 to {MAX_HEADER_NAME} characters, without NUL or lone "
                "surrogates"
            )
        if key.lower().startswith(RESERVED):
            raise InvalidArgument(
                f"the header name {key!r} of {name} is reserved, because it begins with {RESERVED}; choose another"
            )
        if not is_text(value):
            raise InvalidArgument(
                f"the header {key!r} of {name} must be a string without NUL or lone surrogates; write str(…)"
            )
    if not headers:
        return None
    stored = json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":"))
    if len(stored.encode()) > MAX_HEADERS:
        raise InvalidArgument(
            f"headers of {name} are {len(stored.encode())} bytes long as JSON, but the limit is {MAX_HEADERS} bytes; pass larger "
            "values as arguments"
        )
    return stored


def headers_of_json(stored: str | None) -> Mapping[str, str]:
    """Return stored headers, read-only. Raises ValueError if they are not a JSON object of strings; another program's
    SQL may have written them.
    """
    if stored is None:
        return NO_HEADERS
    try:
        found = json.loads(stored)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(found, dict) or not all(is_text(one) for pair in found.items() for one in pair):
        raise ValueError("it is not a JSON object of strings")
    return MappingProxyType(found)
