"""Times, spans and ids as text for the admin. Every time is in Django's active time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.utils import timezone
from django.utils.html import format_html

from ...database.column_types import UnreadableInstant

_UTC = re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\b")
_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


def zone() -> str:
    """Return the name of the active time zone."""
    return timezone.get_current_timezone_name()


def local_time(moment: datetime | None, *, precisely: bool = False, with_zone: bool = False) -> str:
    """Return an aware datetime in the active time zone; empty for None. `precisely`: to the millisecond."""
    if moment is None:
        return ""
    if isinstance(moment, UnreadableInstant):
        return str(moment)
    try:
        here = moment.astimezone(timezone.get_current_timezone())
    except OverflowError:  # at the end of the calendar
        return moment.isoformat()
    text = here.replace(tzinfo=None).isoformat(" ", "milliseconds" if precisely else "seconds")
    return f"{text} {zone_of(here)}" if with_zone else text


def zone_of(moment: datetime) -> str:
    """Return the short name of a datetime's zone, such as EST; the full name of a zone that has only an offset."""
    short = moment.tzname() or ""
    return short if short.isalpha() else zone()


def localized(sentence: str) -> str:
    """Return a sentence of outboxq with its UTC times in the active time zone."""

    def written(found: re.Match[str]) -> str:
        try:
            moment = datetime.strptime(found[0], "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)
        except ValueError:  # an error's text may contain a day that does not exist
            return found[0]
        return local_time(moment, with_zone=True)

    return _UTC.sub(written, sentence)


def in_words(seconds: float) -> str:
    """Return a span with its units: 1 h, 1 min 30 s, 0.5 s."""
    parts = []
    for unit, length in _UNITS:
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count:g} {unit}")
    if seconds or not parts:
        parts.append(f"{round(seconds, 3):g} s")
    return " ".join(parts)


def short_id(task_id: UUID) -> Any:
    """Return the beginning of an id (its time) and its end (random digits), with the whole id as tooltip."""
    text = str(task_id)
    return format_html('<span class="outboxq-id" title="{}">{}…{}</span>', text, text[:8], text[-4:])


def whole_id(task_id: UUID) -> Any:
    """Return an id that one click selects."""
    return format_html('<code class="outboxq-whole-id">{}</code>', task_id)
