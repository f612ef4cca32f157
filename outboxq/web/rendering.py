"""The dashboard's templates with their filters, and its static files."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Request, Response

from ..model.relays import is_counted
from ..model.wording import grouped, plain_text, plural, sentence, size, span
from .browser import Notice, hidden_field
from .charts import NOTHING, Plot, chart_of
from .request import Redact

_PAGES = ("overview", "queues", "tasks", "failures", "batches", "workers", "schedules", "relays", "actions", "system")
NAVIGATION: Final = tuple((name, name.capitalize()) for name in _PAGES)
"""The navigation entries: the name of each route, and its label."""


class Templates:
    """Renders pages. A rendered page is used for all of a viewer's browsers; the parts that differ are filled in
    afterwards, in place of random placeholders, which stored text cannot contain.
    """

    def __init__(self, redact: Redact = str) -> None:
        self._form_token, self._notice, self._etag = (secrets.token_hex(16) for _ in range(3))
        self._environment = environment(redact)
        self._environment.globals["csrf_field"] = hidden_field(self._form_token)

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Return the page with its placeholders."""
        places = {"notice_place": self._notice, "etag_place": self._etag}
        return self._environment.get_template(template).render({**values, **places})

    def fill(self, text: str, *, form_token: str, notice: Notice | None, etag: str) -> str:
        """Return the page for one browser."""
        shown = "" if notice is None else self._environment.get_template("notice.html").render(notice=notice)
        text = text.replace(self._notice, shown)  # first, because a notice may contain a form
        return text.replace(self._form_token, form_token).replace(self._etag, str(escape(etag)))


def environment(redact: Redact = str) -> Environment:
    """Return the environment for the templates. The filter `private` applies `redact`, and turns None into "". The
    filter `drawn` keeps the last charts, because drawing them takes half of the time that it takes to render a page
    with charts.

    All text is escaped, invisible characters are made visible, and a missing variable is an error.
    """
    found = Environment(
        loader=PackageLoader("outboxq.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_shown,
    )
    draw = lru_cache(maxsize=_MOST_DRAWN)(partial(_drawn, found))
    found.filters |= {**FILTERS, "drawn": draw, "private": _optional(lambda value: redact(str(value)))}
    return found


class Drawn(NamedTuple):
    """A drawn chart."""

    card: Markup
    is_empty: bool


_MOST_DRAWN: Final = 64
"""The maximum number of charts that are kept. Each takes about 20 kB."""


def _drawn(environment: Environment, plot: Plot) -> Drawn:
    chart = chart_of(plot)
    card = environment.get_template("charts.html").module.card(chart, NOTHING)  # type: ignore[attr-defined]
    return Drawn(card=card, is_empty=chart.is_empty)


def _shown(value: Any) -> Any:
    """Return what a template outputs for a value: an empty string for None, otherwise `plain_text`."""
    kind = type(value)  # a page outputs up to 2,000 values, so the usual ones are recognized first
    if kind is int or kind is float or kind is Markup:
        return value
    if value is None:
        return ""
    return value if hasattr(value, "__html__") else plain_text(value)


_LONGEST_PART = 24
"""The maximum number of characters in a name between two places where a line can break."""


def moment(value: datetime | None, *, is_fine: bool = False) -> Markup | str:
    """Return a `<time>` element with the time in UTC, to the second or, if `is_fine` is True, to the millisecond. The
    `datetime` attribute contains the exact time. For None, the result is empty.
    """
    if value is None:
        return ""
    exact = value.astimezone(UTC)
    # Markup.format would take ten times as long, and a chart's table contains hundreds of such elements.
    text = f"{exact:%Y-%m-%d %H:%M:%S}" + (f".{exact.microsecond // 1000:03}" if is_fine else "")
    return Markup(f'<time datetime="{exact.isoformat()}">{text} UTC</time>')  # noqa: S704


def clock(value: datetime | None, now: datetime) -> Markup | str:
    """Return a short `<time>` element, without the date for a time today and without the year for a time in the current
    year.
    """
    if value is None:
        return ""
    at, today = value.astimezone(UTC), now.astimezone(UTC)
    day = "" if at.date() == today.date() else f"{at.day} {at:%b} " if at.year == today.year else f"{at:%Y-%m-%d} "
    exact, full = at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S}"
    # Markup.format would take several times as long.
    return Markup(f'<time datetime="{exact}" title="{full} UTC">{day}{full[-8:]}</time>')  # noqa: S704


_CLOCKS_DIFFER: Final = timedelta(seconds=1)


_SPAN = re.compile(r"\b\d+(?:\.\d+)? (?:d|h|min|m?s)\b(?: \d+ (?:h|min|s)\b)?(?: ago\b)?")


def unbroken(value: object) -> Markup:
    """Return `plain_text` with no-break spaces inside each span of time, so that "16 min 5 s ago" stays on one line."""
    text = str(escape(plain_text(value)))
    return Markup(_SPAN.sub(lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text))  # noqa: S704


def age(value: datetime | None, now: datetime) -> Markup | str:
    """Return how long ago a time was, or how far ahead it is: 3 min 5 s ago, in 2 h. For None, the result is empty.

    A time less than a second ahead is "now", because the clock of the machine that wrote it may be fast. The page's
    script updates the text from the element's `data-age` attribute, which is in seconds.
    """
    if value is None:
        return ""
    if now < value < now + _CLOCKS_DIFFER:
        text: Markup | str = "now"
    else:
        text = unbroken(f"{_rough(now - value)} ago" if value <= now else f"in {_rough(value - now)}")
    return Markup(f'<span data-age="{(now - value).total_seconds():.0f}">{text}</span>')  # noqa: S704


def elapsed(value: timedelta) -> Markup:
    """Return the time since something began, such as 3 min 5 s, 2 h 1 min or 4 d 3 h."""
    return unbroken(_rough(value))


def _rough(value: timedelta) -> str:
    """Return the span in words, rounded down to the hour if it is at least a day, and to the minute if it is at least
    ten minutes.
    """
    for least, unit in ((timedelta(days=1), timedelta(hours=1)), (timedelta(minutes=10), timedelta(minutes=1))):
        if value >= least:
            return span(value // unit * unit)
    return span(value)


def lately(value: datetime | None, now: datetime) -> Markup | str:
    """Return the `clock` form of a time and its `age`. For None, the result is empty."""
    if value is None:
        return ""
    return Markup(f'{clock(value, now)} <span class="soft nowrap">{age(value, now)}</span>')  # noqa: S704


def number(value: int | None) -> str:
    """Return a whole number with its digits in groups of three. For None, the result is empty."""
    return "" if value is None else grouped(value)


def events(value: int) -> str:
    """Return a count of a relay's events, with a + if there may be more."""
    return f"{number(value)}{'' if is_counted(value) else '+'}"


def breakable(value: object) -> Markup:
    """Return `plain_text` that a browser may break after dots, slashes, dashes, colons and underscores, and otherwise
    after every 24 characters.

    The style sheet does not allow other line breaks in names. An invisible name is replaced by a description, so that
    its link can be seen.
    """
    text = plain_text(value)
    if value is not None and not text.strip():
        return escape("(blank name)" if text else "(empty name)")
    parts = re.split(r"(?<=[./:_-])", text)
    pieces = (one[at : at + _LONGEST_PART] for one in parts for at in range(0, len(one), _LONGEST_PART))
    return Markup("<wbr>").join(map(escape, pieces))


_LONGEST_WHOLE: Final = 1_000_000


def whole(value: object) -> Markup:
    """Return `plain_text`, limited to a million characters, for text that is folded and can be copied."""
    return escape(plain_text(value, _LONGEST_WHOLE))


def _optional(words: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return a function that returns "" for None and otherwise calls the given function."""
    return lambda value: "" if value is None else words(value)


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "moment": moment,
    "clock": clock,
    "age": age,
    "lately": lately,
    "elapsed": elapsed,
    "size": _optional(size),
    "span": _optional(lambda value: unbroken(span(value))),
    "number": number,
    "events": events,
    "plural": plural,
    "sentence": lambda value: unbroken(sentence(str(value))),
    "plain": plain_text,
    "whole": whole,
    "breakable": breakable,
}


PREFIX: Final = "/static/"
"""The beginning of the path to each static file."""

_FOR_EVER: Final = "public, max-age=31536000, immutable"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticFile:
    """A static file: its bytes, its media type, and the beginning of its hash."""

    content: bytes
    media_type: str
    version: str


class StaticFiles:
    """Serves the static files, which are looked up by name in memory, so that a path cannot lead out of the package."""

    def __init__(self) -> None:
        self._files = _read()

    def path(self, name: str, *, root: str = "") -> str:
        """Return the path of a file in a dashboard that is mounted at `root`. The path changes with the file's content,
        so that browsers may cache the file.
        """
        return f"{root}{PREFIX}{self._files[name].version}/{name}"

    def answer(self, request: Request) -> Response:
        """Return the file with this path. A path with a different version belongs to a different release, and its
        response is not cached.
        """
        version, _, name = request.path.removeprefix(PREFIX).partition("/")
        found = self._files.get(name)
        if found is None:
            raise NotFound
        response = Response(found.content, mimetype=found.media_type)
        response.headers["Cache-Control"] = _FOR_EVER if version == found.version else "no-cache"
        response.set_etag(found.version)
        return response.make_conditional(request)


def _read() -> Mapping[str, StaticFile]:
    found = {}
    for one in files("outboxq.web").joinpath("static").iterdir():
        if one.is_file():
            content = one.read_bytes()
            suffix = one.name[one.name.rfind(".") :]
            media_type = _TYPES.get(suffix, "application/octet-stream")
            version = hashlib.sha256(content).hexdigest()[:16]
            found[one.name] = StaticFile(content=content, media_type=media_type, version=version)
    return found
