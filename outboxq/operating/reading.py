"""Functions that parse what a person types on a command line or in a form, and the words for the states of a task.

The parsing functions raise InvalidArgument. A Ready task is due, delayed, or waiting for its retry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ..errors import InvalidArgument, PayloadError
from ..model import EARLIEST, LATEST, LONGEST, TaskExecution, TaskStatus, Waiting
from ..model.rules import check_rule, rule_of, zone_of
from ..model.schedules import CatchUp
from ..payload.parameters import dump_arguments

NONE = "none"
"""The word that removes a limit, typed in place of a value."""
STATES: Final[Mapping[str, tuple[TaskStatus, Waiting | None]]] = {
    **{one.value: (TaskStatus.READY, one) for one in Waiting},
    **{status.lower(): (status, None) for status in TaskStatus},
}
"""The words for `--status` and for the dashboard's filter, with the status and the part of Ready that they select."""
_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d{1,6})?)s)?(?:(\d+)ms)?", re.ASCII)
_UNITS = ("days", "hours", "minutes", "seconds", "milliseconds")
_WITH_OFFSET = "write it with a UTC offset, like 2026-11-23T02:30Z or 2026-11-23T03:30+01:00"


def read_span(text: str) -> timedelta:
    """Return a span of time: 90d, 7d12h, 30m, 45s, 0.5s, 500ms."""
    parts = _SPAN.fullmatch(text)
    if not text or parts is None:
        raise InvalidArgument("write a span such as 90d, 7d12h, 30m, 0.5s or 500ms")
    try:
        found = timedelta(**{unit: float(part or 0) for unit, part in zip(_UNITS, parts.groups(), strict=True)})
    except (OverflowError, ValueError):  # a number that is too large becomes infinite
        found = timedelta.max
    if found > LONGEST:
        raise InvalidArgument(f"the span is longer than {LONGEST.days}d, the maximum")
    return found


def read_instant(text: str) -> datetime:
    """Return the point in time that an ISO 8601 string describes. The offset is required, so that the string means the
    same time everywhere.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f"{text!r} is not a time; {_WITH_OFFSET}") from None
    if moment.utcoffset() is None:
        raise InvalidArgument(f"{text!r} has no offset; {_WITH_OFFSET}")
    try:
        inside = EARLIEST <= moment <= LATEST
    except OverflowError:  # in the year 1 or 9999, the time in UTC may be out of range
        inside = False
    if not inside:
        raise InvalidArgument(f"{text!r} is outside the years {EARLIEST.year} to {LATEST.year - 1}")
    return moment


def read_utc(text: str, name: str) -> datetime:
    """Return the point in time that the field with this name contains. A time without an offset is in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{name} is not a time: write a time in UTC, such as 2026-11-30 14:05, not {text!r}"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def read_since(text: str, name: str, now: datetime) -> datetime:
    """Return the point in time that the field with this name contains: a time that `read_utc` accepts, or a span
    before `now`, such as 1h.
    """
    if "-" in text or ":" in text:  # as in 2026-11-23
        return read_utc(text, name)
    try:
        return now - read_span(text)
    except (InvalidArgument, OverflowError):
        raise InvalidArgument(
            f"{name} is not a time: write a time in UTC, such as 2026-11-30 14:05, or a span before now, such as 1h, not {text!r}"
        ) from None


def read_number(text: str, name: str) -> int:
    """Return the whole number of at least 1 that the field with this name contains."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise InvalidArgument(f"{name} is not a whole number from 1 to 999999999: {text[:40]!r}")
    return int(text)


def read_limit(text: str) -> int | None:
    """Return a limit as a whole number; None for `none`, which removes the limit."""
    if text == NONE:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise InvalidArgument(f"write a whole number from 1 to 999999999, or 'none', not {text[:40]!r}")
    return int(text)


def read_rate(text: str) -> tuple[int, timedelta] | None:
    """Return a number of starts and their time span: 100/1m, 5/1s, 100/m; None for `none`, which removes the limit."""
    if text == NONE:
        return None
    starts, _, time = text.partition("/")
    try:
        found = read_limit(starts), read_span(f"1{time}" if time in {"s", "m", "h", "d"} else time)
    except InvalidArgument:
        found = None, timedelta(0)
    if found[0] is None or not found[1]:
        raise InvalidArgument(
            f"write a number of starts and a span above 0, such as 100/1m, or 'none', not {text[:40]!r}"
        )
    return found[0], found[1]


def read_priority(text: str) -> int:
    """Return a priority, from -100 to 100."""
    if not re.fullmatch(r"[+-]?[0-9]{1,3}", text) or not -100 <= int(text) <= 100:
        raise InvalidArgument(f"write a whole number from -100 to 100, not {text[:40]!r}")
    return int(text)


def read_argument(text: str) -> tuple[str, Any]:
    """Return the name and the value of an argument: order_id=17, mail=ann@example.org, code="17". The value is read as
    JSON if possible, otherwise as a string.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidArgument(f"write an argument such as order_id=17, not {text[:40]!r}")
    try:
        found = json.loads(value)
        json.dumps(found, allow_nan=False)
    except (ValueError, RecursionError):
        return name, value
    return name, found


def read_arguments(text: str) -> str:
    """Return the stored form of a task's arguments, which are written as a JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"the text is not JSON: {error}") from None
    except RecursionError:
        raise InvalidArgument("the JSON is nested too deeply") from None
    if not isinstance(found, dict):
        raise InvalidArgument('write a JSON object with the arguments by name, such as {"order_id": 7}')
    try:
        return dump_arguments(found, name="the task")
    except PayloadError as error:
        raise InvalidArgument(str(error)) from None


def read_rule(text: str) -> str:
    """Return the stored form of a rule, which is a cron expression, or `every` and a time span."""
    words = text.split()
    if words[:1] == ["every"] and len(words) == 2 and not words[1].isdigit():
        text = rule_of(None, read_span(words[1]))
    check_rule(text, "UTC")
    return rule_of(text, None)


def read_zone(text: str) -> str:
    """Return the IANA name of a time zone."""
    zone_of(text)
    return text


def read_catch_up(text: str) -> CatchUp:
    """Return the policy for missed ticks: none, latest or all."""
    if text not in set(CatchUp):
        raise InvalidArgument(f"choose one of {', '.join(CatchUp)}, not {text[:40]!r}")
    return CatchUp(text)


def read_grace(text: str) -> timedelta | None:
    """Return a span of time greater than 0; None for `none`, which removes the limit."""
    if text == NONE:
        return None
    if not (found := read_span(text)):
        raise InvalidArgument("write a span above 0, such as 10m, or 'none'")
    return found


def read_order(text: str) -> bool:
    """Return whether the partition keys of a queue take turns: True for ``turns``, False for ``oldest``."""
    if text not in {"turns", "oldest"}:
        raise InvalidArgument("choose 'turns' or 'oldest'")
    return text == "turns"


def read_state(text: str) -> tuple[TaskStatus, Waiting | None]:
    """Return the status and the part of Ready that a word selects. Raises InvalidArgument."""
    if (found := STATES.get(text.lower())) is None:
        raise InvalidArgument(f"there is no state {text!r}: choose one of {', '.join(STATES)}")
    return found


def state_of(task: TaskExecution, due_at: datetime | None, now: datetime) -> str:
    """Return the state of a task in one word. `due_at` is the due time of a Ready task."""
    if task.status is not TaskStatus.READY:
        return task.status.lower()
    if due_at is None or due_at <= now:
        return Waiting.DUE
    return Waiting.DELAYED if task.retry_at is None else Waiting.RETRYING
