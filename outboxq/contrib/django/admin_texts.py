"""Times and other texts of the admin. Every time is in Django's active time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from django.utils.timezone import get_current_timezone
from django.utils.timezone import get_current_timezone_name as zone

from ...database.column_types import UnreadableInstant

_UTC = re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\b")
_LONGEST = 20_000
"""Maximum number of characters of a text."""


def local_time(moment: datetime | None, *, precisely: bool = False, with_zone: bool = False) -> str:
    """Return an aware datetime in the active time zone; empty for None. `precisely`: to the millisecond."""
    if moment is None:
        return ""
    if isinstance(moment, UnreadableInstant):
        return str(moment)
    try:
        here = moment.astimezone(get_current_timezone())
    except OverflowError:  # at the end of the calendar
        return moment.isoformat()
    text = here.replace(tzinfo=None).isoformat(" ", "milliseconds" if precisely else "seconds")
    short = here.tzname() or ""  # such as EST; a zone that has only an offset is written with its full name
    return f"{text} {short if short.isalpha() else zone()}" if with_zone else text


def localized(sentence: str) -> str:
    """Return a sentence of outboxq with its UTC times in the active time zone."""

    def written(found: re.Match[str]) -> str:
        try:
            moment = datetime.strptime(found[0], "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)
        except ValueError:  # an error's text may contain a day that does not exist
            return found[0]
        return local_time(moment, with_zone=True)

    return _UTC.sub(written, sentence)


def plain(text: str) -> str:
    """Return the text, cut if it is too long, with invisible characters written out so that none can imitate other text."""
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… and {len(text) - _LONGEST} characters more"
    return "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in cut)
