"""`outboxq actions`: list the changes that people made."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from ..model.display import as_json
from ..operating.verbs import RECORDED
from .console import show
from .database import database_options
from .parameters import MOMENT, number_option, option

if TYPE_CHECKING:
    from ..store import Store


@click.command()
@option("--operator", help="Only changes by this person.")
@option(
    "--action",
    type=click.Choice(RECORDED),
    metavar="ACTION",
    help='Only this action, named by its command, such as "queue pause".',
)
@option("--target", help="Only changes to this queue or schedule, or to the task or batch with this id.")
@option("--since", type=MOMENT, help="Only changes made at most this long ago, e.g. 2h, or since this time.")
@number_option("--limit", help="Maximum number of changes.", most=10_000, default=50)
@database_options
def actions(store: Store, *, since: timedelta | datetime | None, limit: int, **wanted: Any) -> None:
    """List the changes that people made: who, what, and why.

    The newest change comes first. Each change made with a command, in the dashboard or in Django's admin is recorded in
    the transaction that makes it. For a command, the person's name is the value of OUTBOXQ_OPERATOR or, if that is not
    set, the login name.
    """
    start = store.now() - since if isinstance(since, timedelta) else since
    found = store.actions.list(since=start, limit=limit, **wanted)
    rows = []
    for one in found:
        details = ", ".join(f"{name}={value}" for name, value in as_json(one.details).items())
        on = one.target if one.target is not None else "all that matched"
        rows.append((one.at, one.operator, one.interface, one.action, on, one.changed, one.reason, details))
    head = ("at", "who", "with", "action", "on", "changes", "reason", "details")
    show(head, rows, records=found, spare=("details", "with", "changes"))
