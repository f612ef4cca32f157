"""Format numbers, spans, sizes and strings in the same way for all front ends, messages and log lines."""

from __future__ import annotations

from collections.abc import Container, Iterable
from datetime import UTC, datetime, timedelta

MOST_LISTED = 3
"""The maximum number of queues, tasks, schedules, batches or keys that a sentence names."""
LONGEST_TEXT = 20_000
"""The maximum number of characters that a page shows of one string."""
TENTHS = 9.95
"""The shortest span, in seconds, that is written in whole seconds. With one decimal place, this span would read 10.0 s.
"""
IMPORT = "import its module where the worker starts"
"""The remedy for a task that a worker does not know."""
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def plural(number: int, one: str, many: str = "") -> str:
    """Return the word that goes with the number: ``task`` for 1, otherwise ``tasks``. Pass `many` if the plural does
    not simply add an s.
    """
    return one if number == 1 else many or f"{one}s"


def listed(words: Iterable[str]) -> str:
    """Return the first words as a list, followed by the number of omitted words."""
    several = list(words)
    more = len(several) - MOST_LISTED
    return ", ".join(several[:MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def grouped(number: int) -> str:
    """Return the number with its digits in groups of three: 1,500."""
    return f"{number:,}"


def rate_of(limit: tuple[int, timedelta]) -> str:
    """Return a limit on the starts per period: 2,000 in 1 min."""
    number, period = limit
    return f"{grouped(number)} in {span(period)}"


def span(value: timedelta | float) -> str:
    """Return a span of time, given as a timedelta or in seconds, in one or two units: 12 ms, 1.5 s,
    3 min 5 s, 4 d 1 h.

    A negative span, which comes from a difference between the clocks of two machines, becomes 0 s.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < TENTHS:
        return _short(seconds)
    whole, parts = round(seconds), list[str]()
    for length, unit in _SPANS:
        count, whole = divmod(whole, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def unseen(silence: timedelta) -> str:
    """Return a phrase about a worker that counts as dead, such as "has not been seen for 3 min". `silence` is the time
    since the worker was last seen.
    """
    since = "since the clock was set back" if silence < timedelta(0) else f"for {span(silence)}"
    return f"has not been seen {since}"


def brief(value: timedelta) -> str:
    """Return a span of time in one unit, for a column: 12 ms, 1.5 s, 12 s, 5 min, 2 h, 3 d. A negative span becomes
    zero.
    """
    seconds = value.total_seconds()
    if seconds < TENTHS:
        return _short(seconds)
    for length, unit in reversed(_SPANS[1:]):
        if round(seconds / length) < 100:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def _short(seconds: float) -> str:
    if seconds <= 0:
        return "0 s"
    milliseconds = round(seconds * 1000)
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{seconds:.1f} s"


def size(number: int) -> str:
    """Return a byte count as text, in one unit: 812 B, 1.4 MB, 120 GB."""
    for unit, length in _SIZES:
        if number >= 0.9995 * length:  # a smaller number is rounded to at most 999 of the next unit
            return f"{number / length:.{0 if number >= 99.95 * length else 1}f} {unit}"
    return f"{number} B"


def short(moment: datetime) -> str:
    """Return the time in UTC, to the second."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def sentence(text: str) -> str:
    """Return the text with its first character capitalized."""
    return text[:1].upper() + text[1:]


def plain(value: object, *, kept: Container[str] = "") -> str:
    """Return the text with invisible characters, except those in `kept`, written as escapes, so that the text can
    neither control a terminal nor imitate other text.
    """
    text = "" if value is None else str(value)
    if text.isprintable():  # true for most strings; checking each character took a quarter of a page's time
        return text
    return "".join(one if one.isprintable() or one in kept else repr(one)[1:-1] for one in text)


def plain_text(value: object, longest: int = LONGEST_TEXT) -> str:
    """Return the text for a page, with invisible characters written as `plain` writes them. Line breaks are kept, and
    text with more than `longest` characters is cut.
    """
    if type(value) is str and len(value) <= longest and value.isprintable():  # true for almost all strings on a page
        return value
    text = "" if value is None else str(value)
    if len(text) > longest:
        text = f"{text[:longest]}\n… and {len(text) - longest} more characters"
    return plain(text, kept="\n\t")
