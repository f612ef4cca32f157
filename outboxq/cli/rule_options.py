"""The rule, the time zone and the moments that the commands on schedules take."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from ..errors import InvalidArgument
from ..model import EARLIEST, LATEST
from ..model.rules import check_rule, rule_of, zone_of
from .console import span

_MOST = 1000


class RuleText(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs, not at run time before 8.3
    """A click type: a cron expression, or `every` and a span of time. The value is the rule as it is stored."""

    name = "rule"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        words = text.split()
        try:
            if words[:1] == ["every"] and len(words) == 2 and not words[1].isdigit() and ctx and param:
                text = rule_of(None, span(ctx, param, words[1]))
            check_rule(text, "UTC")
            return rule_of(text, None)
        except InvalidArgument as error:
            self.fail(str(error), param, ctx)


class Moment(click.ParamType):  # type: ignore[type-arg]
    """A click type: a moment in ISO 8601. Without an offset it is naive, and meant in the time zone of the schedule."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no moment; write it as 2026-11-23, 2026-11-23T02:30 or …+01:00", param, ctx)
        if not EARLIEST.year < moment.year < LATEST.year:
            self.fail(f"{value!r} is not in the years {EARLIEST.year + 1} to {LATEST.year - 1}", param, ctx)
        return moment


RULE, MOMENT = RuleText(), Moment()


def _zone(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Check the name of a time zone as a click callback."""
    try:
        zone_of(value)
    except InvalidArgument as error:
        raise click.BadParameter(str(error), context, parameter) from None
    return value


tz_option = click.option(
    "--tz", default="UTC", show_default=True, callback=_zone, help="Time zone of the rule, by its IANA name."
)
number_option = click.option(
    "-n", "--number", default=5, show_default=True, type=click.IntRange(1, _MOST), help="Number of ticks to print."
)
