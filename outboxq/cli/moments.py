"""A moment on the command line, which may be in the future."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from ..model import EARLIEST, LATEST

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
