"""Moments on the command line: in ISO 8601 with an offset, or as a span of time up to now."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from ..model import EARLIEST, LATEST
from .console import span

if TYPE_CHECKING:
    from ..store import Store

_WRITTEN = "write it with its offset, as 2026-11-23T02:30Z or 2026-11-23T03:30+01:00"


class Instant(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs, not at run time before 8.3
    """A click type: a moment in ISO 8601 with an offset, so that it means the same in every time zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no time; {_WRITTEN}", param, ctx)
        if moment.utcoffset() is None:
            self.fail(f"{value!r} has no offset; {_WRITTEN}", param, ctx)
        try:
            inside = EARLIEST <= moment <= LATEST
        except OverflowError:  # the year 1 or 9999, compared in UTC
            inside = False
        if not inside:
            self.fail(f"{value!r} is not in the years {EARLIEST.year} to {LATEST.year - 1}", param, ctx)
        return moment


INSTANT = Instant()


def past(context: click.Context, parameter: click.Parameter, value: str | None) -> datetime | timedelta | None:
    """Read a moment, or a span of time up to now, as a click callback: `10m` or `2026-11-23T02:30Z`."""
    if value is None:
        return None
    if value[:4].isdigit() and "-" in value:
        return INSTANT.convert(value, parameter, context)
    return span(context, parameter, value)


def moment_of(store: Store, given: datetime | timedelta) -> datetime:
    """Return the moment that `past` has read, by the database's clock."""
    return given if isinstance(given, datetime) else store.now() - given
