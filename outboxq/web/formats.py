"""Times, spans, numbers and texts as pages show them. Each is a filter of the templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from markupsafe import Markup, escape

from ..model.wording import plural

_LONGEST = 20_000
"""Maximum number of characters of a text."""
_LONGEST_PART = 24
"""Maximum number of characters of a name that stay in one line."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def moment(value: datetime | None) -> Markup | str:
    """Return a `<time>` element with the time in UTC, to the second; the exact time is in its attribute. None: nothing."""
    if value is None:
        return ""
    exact = value.astimezone(UTC)
    # Without Markup.format, which takes ten times as long: the figures of a chart have hundreds of moments.
    return Markup(f'<time datetime="{exact.isoformat()}">{exact:%Y-%m-%d %H:%M:%S} UTC</time>')  # noqa: S704


def clock(value: datetime | None, now: datetime) -> Markup | str:
    """Return a `<time>` element as short as `now` allows: without the day if it is today, without the year if it is this one."""
    if value is None:
        return ""
    at, today = value.astimezone(UTC), now.astimezone(UTC)
    day = "" if at.date() == today.date() else f"{at.day} {at:%b} " if at.year == today.year else f"{at:%Y-%m-%d} "
    return Markup('<time datetime="{}" title="{} UTC">{}{}</time>').format(
        at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S}", day, f"{at:%H:%M:%S}"
    )


def age(value: datetime | None, now: datetime) -> str:
    """Return how long ago a moment was, or how long from now it is: 3 min 5 s ago, in 2 h. None: nothing."""
    if value is None:
        return ""
    return f"{span(now - value)} ago" if value <= now else f"in {span(value - now)}"


def lately(value: datetime | None, now: datetime) -> Markup | str:
    """Return the `clock` time of a moment and its `age`, which has no seconds above ten minutes. None: nothing."""
    if value is None:
        return ""
    seconds = (now - value).total_seconds()
    rough = timedelta(minutes=int(seconds / 60)) if abs(seconds) >= 600 else now - value
    return Markup('{} <span class="soft nowrap">{}</span>').format(clock(value, now), age(now - rough, now))


def size(value: int | None) -> str:
    """Return a number of bytes in one unit: 812 B, 1.4 MB. None: nothing."""
    if value is None:
        return ""
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= length:
            return f"{value / length:.{0 if value >= 100 * length else 1}f} {unit}"
    return f"{value} B"


def span(value: timedelta | float | None) -> str:
    """Return a span of time in one or two units: 12 ms, 1.5 s, 3 min 5 s, 4 d 1 h. None: nothing."""
    if value is None:
        return ""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole, parts = round(seconds), list[str]()
    for length, unit in _UNITS:
        count, whole = divmod(whole, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def number(value: int | None) -> Markup | str:
    """Return a whole number with thin spaces between thousands. None: nothing.

    It is markup, because `plain` would write the thin spaces out.
    """
    return "" if value is None else Markup(f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}"))  # noqa: S704


def plain(value: object) -> str:
    """Return a text, cut if it is too long, with invisible characters written out: none can imitate or reorder other text."""
    text = "" if value is None else str(value)
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… and {len(text) - _LONGEST} characters more"
    if cut.isprintable():  # as most are; looking at each character was a quarter of the time of a page
        return cut
    return "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in cut)


def breakable(value: object) -> Markup:
    """Return `plain` text that a browser may break behind dots, slashes, dashes, colons and underscores, and every 24 characters.

    The style sheet breaks names of tables nowhere else. A name that would not be seen is named: else its link could not be found.
    """
    text = plain(value)
    if value is not None and not text.strip():
        return escape("(blank name)" if text else "(empty name)")
    parts = re.split(r"(?<=[./:_-])", text)
    pieces = (one[at : at + _LONGEST_PART] for one in parts for at in range(0, len(one), _LONGEST_PART))
    return Markup("<wbr>").join(map(escape, pieces))


def sentence(value: str) -> str:
    """Return a text with a capital at its begin, and the rest as it is."""
    return value[:1].upper() + value[1:]


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "moment": moment,
    "clock": clock,
    "age": age,
    "lately": lately,
    "size": size,
    "span": span,
    "number": number,
    "plural": plural,
    "sentence": sentence,
    "plain": plain,
    "breakable": breakable,
}
