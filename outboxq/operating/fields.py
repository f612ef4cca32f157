"""The values that verbs need in addition to their targets: the options of a command, and the inputs of a form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..errors import InvalidArgument, InvalidCall, PayloadError
from .reading import (
    NONE,
    read_arguments,
    read_catch_up,
    read_grace,
    read_instant,
    read_limit,
    read_order,
    read_priority,
    read_rate,
    read_rule,
    read_span,
    read_zone,
)

if TYPE_CHECKING:
    from ..outbox import Outbox


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A value that a verb needs in addition to its target."""

    name: str
    """The keyword argument of the verb's function."""
    option: str
    """The command's option. A word in capitals stands for a positional argument."""
    help: str = ""
    """The option's help text."""
    label: str = ""
    """The label in a form."""
    read: Callable[[str], Any] | None = None
    """A function that returns the value that a string describes, or raises InvalidArgument; None for a flag."""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    default: Any = None
    """The value that is used if the option is not given."""
    is_required: bool = False
    inputs: tuple[str, ...] | None = None
    """The names of the form's inputs. None means one input with the field's name, and () means that forms do not ask
    for the value.
    """
    empty: str = ""
    """The text to use for an empty input."""
    is_hidden: bool = False
    """If True, the record of the action says only that the value was given, because some people must not see it."""

    @property
    def in_form(self) -> tuple[str, ...]:
        """The names of the inputs in a form."""
        return (self.name,) if self.inputs is None else self.inputs

    def of_form(self, form: Mapping[str, str]) -> Any:
        """Return the field's value from a form. If there are two inputs, they are a number of starts and a period in
        seconds. Raises InvalidArgument for a value that is not valid.
        """
        texts = [form.get(name, "").strip() for name in self.in_form]
        if self.read is None:
            return texts == ["yes"]
        try:
            if not any(texts):
                texts = [self.empty]
            elif not all(texts):
                raise InvalidArgument("a rate needs a number of starts and a number of seconds; give both, or neither")
            text = texts[0] if len(texts) == 1 else f"{texts[0]}/{texts[1]}s"
            if not text and self.is_required:
                raise InvalidArgument("a value is required")
            return self.read(text) if text else self.default
        except InvalidArgument as error:
            raise InvalidArgument(f"{self.label}: {error}") from None


def _limit(name: str, option: str, label: str, *inputs: str, help: str) -> Field:
    """Return the field for a limit: one input for a number, or two for a rate."""
    read, metavar = (read_rate, "NUMBER/SPAN") if len(inputs) > 1 else (read_limit, "NUMBER")
    made = partial(Field, name=name, option=option, label=label, help=help, inputs=inputs, metavar=metavar)
    return made(read=read, default=..., empty=NONE)


LONGEST_REASON: Final = 500
"""The maximum number of characters in a reason that a person enters in a form."""
REASON = Field(name="reason", option="--reason", help="Reason to record.", label="Reason", read=str, default="")
PAUSE_REASON = replace(REASON, help="Reason to show during the pause.", label="Reason to show during the pause")
FORCE = Field(name="force", option="--force", help="Do not wait for running handlers; refuse their results.", inputs=())
TAKE_KEY_BACK = Field(name="take_key_back", option="--take-key-back", help="Take the key back from another task.")
CREATE = Field(
    name="create", option="--create", help="Accept an unknown queue, to set it up before its first task.", inputs=()
)
AT = Field(
    name="at", option="--at", help="Due time, e.g. 2026-11-23T02:30Z.", read=read_instant, metavar="TIME", inputs=()
)
IN = Field(
    name="delay",
    option="--in",
    help="Time span from now until the task is due, e.g. 2h.",
    label="Due in, such as 2h",
    read=read_span,
    metavar="SPAN",
)
PRIORITY = Field(name="priority", option="PRIORITY", label="Priority", read=read_priority, is_required=True)
_ORDERS: Final = ("turns", "oldest")
ORDER = Field(
    name="fair", option="FIRST", label="First", read=read_order, choices=_ORDERS, inputs=("first",), is_required=True
)
_AT_ONCE = "Maximum number of running tasks, across all workers. `none` removes the limit."
_STARTS = "Maximum number of starts per period, e.g. 100/1m. `none` removes the limit."
_KEY_STARTS = "Maximum number of starts per key and period, e.g. 5/1m. `none` removes the limit."
_KEY_AT_ONCE = "Maximum number of running tasks per concurrency key. `none` resets it to one."
LIMITS = (
    _limit("concurrency", "--concurrency", "At once", "concurrency", help=_AT_ONCE),
    _limit("rate", "--rate", "Starts", "starts", "seconds", help=_STARTS),
    _limit("rate_per_key", "--per-key", "Starts per key", "key_starts", "key_seconds", help=_KEY_STARTS),
    _limit("concurrency_per_key", "--concurrency-per-key", "At once per key", "key_concurrency", help=_KEY_AT_ONCE),
)


def _kept(name: str, label: str, read: Callable[[str], Any], metavar: str, help: str, **more: Any) -> Field:
    """Return the field for a value that stays unchanged if the option is omitted."""
    option = f"--{name.replace('_', '-')}"
    return Field(name=name, option=option, label=label, read=read, metavar=metavar, help=help, default=..., **more)


ARGUMENTS = _kept(
    "args", "Arguments", read_arguments, "JSON", "Arguments for each task, as a JSON object.", is_hidden=True
)
QUEUE = _kept("queue", "Queue", str, "QUEUE", "Queue for the tasks.")
KEY = Field(name="key", option="--idempotency-key", label="Idempotency key", read=str)
OF_SCHEDULE = (
    _kept("rule", "Rule", read_rule, "RULE", 'Cron expression such as "30 2 * * *", or "every 15m".'),
    _kept("tz", "Time zone", read_zone, "ZONE", "IANA time zone for the rule."),
    ARGUMENTS,
    QUEUE,
    _kept("catch_up", "Catch-up", read_catch_up, "POLICY", "Missed ticks to run: none, latest or all."),
    _kept(
        "grace",
        "Grace",
        read_grace,
        "SPAN",
        "Time span after a tick during which its task may still start, e.g. 10m. `none` removes the limit.",
        empty=NONE,
    ),
)


def checked(outbox: Outbox, task_name: str, arguments: str) -> str:
    """Return arguments for the task with this name, in their stored form. If this process does not know the task, any
    arguments are accepted. Raises InvalidArgument.
    """
    if task_name not in outbox.tasks:
        return arguments
    task = outbox.tasks.get(task_name)
    try:
        task.parameters.check_call((), json.loads(arguments))  # names what is missing or unknown
        return task.call_as_json((), task.parameters.load(arguments, is_new=True))
    except (InvalidCall, PayloadError) as error:
        raise InvalidArgument(str(error)) from None
