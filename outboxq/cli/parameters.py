"""Click types and options for the values that commands take, and the filters for tasks and dead letters."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial, reduce, wraps
from string import hexdigits
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import click
from click.shell_completion import CompletionItem

from ..errors import InvalidArgument
from ..model import TaskStatus, Waiting
from ..model.wording import short
from ..operating.reading import read_instant, read_span

if TYPE_CHECKING:
    from ..store import Store

Command = Callable[..., None]
_MOST: Final = 1_000_000
"""The maximum number of characters that are read from standard input. Arguments and payloads are much shorter."""
C = TypeVar("C", bound=Callable[..., Any])


def json_reader(kind: str, example: str, types: type = object) -> Callable[..., object]:
    """Return a click callback that reads JSON of these types, from standard input if the option is `-`."""

    def read(_context: click.Context, _option: click.Parameter, text: str | None) -> object:
        if text is None:
            return None
        with suppress(ValueError, RecursionError):  # the error's message may quote the text
            if isinstance(found := json.loads(sys.stdin.read(_MOST) if text == "-" else text), types):
                return found
        raise click.BadParameter(f"write {kind} as JSON, such as '{example}', or - to read standard input")

    return read


class Read(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs, not at run time before 8.3
    """A click type whose values are parsed by a function that raises InvalidArgument for bad input."""

    def __init__(self, name: str, read: Callable[[str], Any], *, known: str | None = None) -> None:
        """`known` is the kind of names that a shell offers as completions for the value."""
        self.name = name
        self._read = read
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):  # a default has already been parsed
            return value
        try:
            return self._read(value)
        except InvalidArgument as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if self._known is None:
            return super().shell_complete(ctx, param, incomplete)
        from .database import completions  # imports the store

        return completions(self._known, ctx, incomplete)


def _read_moment(text: str) -> timedelta | datetime:
    """Parse a time span before now, such as 2h, or a time in ISO 8601 with its offset."""
    if "-" in text or ":" in text:  # as in 2026-11-23
        return read_instant(text)
    try:
        return read_span(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{error}, or a time such as 2026-11-23T02:30Z") from None


def _read_task_id(text: str) -> str:
    """Return the hex digits of an id or of the beginning of an id, for `Store.find`."""
    from ..store.tasks.tasks import digits_of

    try:
        return digits_of(text)
    except InvalidArgument as error:
        hint = "; if you meant APP, pass it with --app" if ":" in text else ""
        raise InvalidArgument(f"{error}{hint}") from None


def _read_group_id(text: str) -> str:
    """Parse a dead letter group's id."""
    found = text.lower()
    if len(found) != _GROUP_DIGITS or not set(found) <= set(hexdigits):
        raise InvalidArgument(f"{found!r} is not a group id: write the 16 hex digits that `failed summary` prints")
    return found


_GROUP_DIGITS: Final = 16
_SECRETS_OF_URL: Final = re.compile(r"(?<=://).*@|(?<=\?).*")
"""Matches the parts of a URL that may contain a password, even one whose characters should have been escaped."""
SPAN, INSTANT, MOMENT = Read("span", read_span), Read("time", read_instant), Read("span|time", _read_moment)
TASK_ID, GROUP_ID = Read("id", _read_task_id), Read("id", _read_group_id, known="group")
QUEUE, TASK_NAME, SCHEDULE = (Read("text", str, known=known) for known in ("queue", "task", "schedule"))

Add = Callable[[C], C]
"""A decorator that adds options to a command."""


def stacked(*options: Add[Any]) -> Add[Any]:
    """Combine several decorators into one. The decorators are applied in the order in which they would be written above
    a function.
    """
    return lambda command: reduce(lambda inner, option: option(inner), reversed(options), command)


class Once(click.Option):
    """An option that takes one value, and refuses a second, different one. Click would silently use the last value."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:  # noqa: ARG002 - click passes it
        parser.add_option(obj=self, opts=[*self.opts, *self.secondary_opts], dest=self.name, action="append", nargs=1)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> Any:
        """Return the value. A repeated value is accepted, because a shell alias may already contain it."""
        name = str(self.name)
        if typed := opts.get(name):
            if different := [one for one in typed if one != typed[0]]:
                values = " and ".join(map(_shown, (typed[0], different[0])))
                message = f"Option {max(self.opts, key=len)!r} takes one value, but got {values}; leave one of them out"
                raise click.UsageError(message, ctx)
            opts = {**opts, name: typed[0]}
        return super().consume_value(ctx, opts)


option: Final = partial(click.option, cls=Once)
"""Adds an option that takes one value. The arguments are those of `click.option`."""
flag: Final = partial(click.option, is_flag=True)
"""Adds an option without a value."""
repeated: Final = partial(click.option, multiple=True)
"""Adds an option that may be given several times."""


def _shown(text: str) -> str:
    """Return a value from the command line in the form that messages show, without passwords."""
    return repr(_SECRETS_OF_URL.sub("…", text) if "://" in text else text)


def number_option(
    *names: str, help: str, least: int = 1, most: int | None = None, default: int | None = None
) -> Add[Any]:
    """Return an option that takes a whole number from `least` to `most`."""
    kind = click.IntRange(least, most)
    return option(*names, type=kind, default=default, show_default=default is not None, help=help)


def span_option(*names: str, help: str, default: str | None = None) -> Add[Any]:
    """Return an option that takes a time span."""
    return option(*names, type=SPAN, default=default, show_default=default is not None, help=help)


def choice_option(*names: str, kind: type[StrEnum], default: StrEnum, help: str) -> Add[Any]:
    """Return an option that takes one of an enum's values."""
    choice = click.Choice([one.value for one in kind])
    return option(*names, type=choice, default=default.value, show_default=True, help=help)


listen_options: Final = stacked(
    click.option(
        "--notifications/--no-notifications",
        default=True,
        help="Listen for notifications in addition to polling, or only poll.",
    ),
    option(
        "--listen-url",
        envvar="OUTBOXQ_LISTEN_URL",
        show_envvar=True,
        help="URL that reaches the database without a connection pooler, for notifications. To hide a password, set the environment variable instead.",
    ),
)
"""Adds `--notifications` and `--listen-url`."""


def _filters(noun: str, happened: str, *more: Add[Any]) -> tuple[Add[Any], ...]:
    """Return the filter options for a command that works on tasks. `--since` and `--until` filter by the time
    of the event that `happened` describes.
    """
    since = f"Only {noun} {happened} at most this long ago, e.g. 2h, or since this time."
    until = f"Only {noun} {happened} longer ago than this, e.g. 30m, or before this time."
    return (
        option("-q", "--queue", type=QUEUE, help=f"Only {noun} in this queue."),
        option("--task", type=TASK_NAME, help=f"Only {noun} with this task name."),
        option("--topic", help=f"Only {noun} with this topic."),
        *more,
        option("--since", type=MOMENT, help=since),
        option("--until", type=MOMENT, help=until),
    )


OF_DEAD_LETTERS: Final = _filters(
    "dead letters",
    "that failed",
    option("--key", "partition_key", help="Only dead letters with this partition key."),
    option("--exception", help="Only dead letters with this exception, as module.Class or Class."),
    option("--group", type=GROUP_ID, help="Only dead letters in this group. `failed summary` prints the ids."),
)
OF_TASKS: Final = _filters("tasks", "enqueued", option("--key", help="Only tasks with this partition key."))


def filtered(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds these filter options. The command receives the given filters as `wanted`. Time spans
    are converted to times, counted back from the database's current time.
    """

    def add(command: Command) -> Command:
        bare = stacked(*options)(lambda: None)  # only to find out the option names
        names = [str(one.name) for one in bare.__click_params__]

        @wraps(command)
        def wrapped(*, store: Store, **given: Any) -> None:
            wanted = {name: value for name in names if (value := given.pop(name)) is not None}
            spans = {name: value for name, value in wanted.items() if isinstance(value, timedelta)}
            if spans:
                now = store.now()
                wanted |= {name: now - value for name, value in spans.items()}
            command(store=store, wanted=wanted, **given)

        filtering: Command = stacked(*options)(wrapped)
        return filtering

    return add


_WORDS: Final[Mapping[str, str]] = {
    "queue": "in the queue",
    "task": "with the task",
    "key": "with the key",
    "partition_key": "with the key",
    "topic": "with the topic",
    "exception": "with the exception",
    "group": "in the group",
    "worker": "of the worker",
    "status": "with the status",
    "waiting": "in the state",
    "since": "since",
    "until": "before",
}


def in_words(noun: str, wanted: Mapping[str, object], *, limit: int | None = None, verb: str = "") -> str:
    """Return the filter as a phrase: "dead letters in the queue 'mail' that failed since …". `verb` precedes the times."""
    filters, times = [], []
    for name, value in wanted.items():
        if isinstance(value, datetime):
            times.append(f"{_WORDS[name]} {short(value)} UTC")
        else:
            shown = str(value) if isinstance(value, (TaskStatus, Waiting, UUID)) else repr(value)
            filters.append(f"{_WORDS[name]} {shown}")
    period = f"{verb} {' and '.join(times)}".strip() if times else ""
    found = " ".join(filter(None, (noun, ", ".join(filters), period))) if wanted else f"all {noun}"
    return found if limit is None else f"{found}, limited to the oldest {limit}"
