"""`outboxq upgrade`: creates the tables, or upgrades them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from ..database.revisions import is_newer, left_alone
from ..model.wording import plural
from .console import EXIT_USAGE, command_on_database, fail
from .database import (
    Given,
    app_option,
    disposing,
    given,
    is_typed,
    names_module,
    naming_locks,
    open_outbox,
    rounds_options,
    schema_option,
    url_option,
)

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from ..outbox import Outbox


@click.command()
@click.argument("place", required=False, metavar="[APP | URL]")
@url_option
@schema_option
@app_option
@click.option(
    "--revision",
    default="head",
    show_default=True,
    help="Alembic revision to upgrade to. APP is always upgraded to the head.",
)
@click.option("--sql", is_flag=True, help="Print the SQL and change nothing.")
@rounds_options
@click.pass_context
def upgrade(
    context: click.Context,
    /,
    place: str | None,
    revision: str,
    *,
    sql: bool,
    lock_timeout: timedelta,
    wait: timedelta,
    **where: Any,
) -> None:
    """Create or upgrade the tables, subscriptions and schedules.

    APP is written module:outbox, e.g. shop:outbox: the command upgrades the tables in its database and stores what its tasks
    subscribe to, and their schedules. With a URL in place of APP, only the tables are upgraded. A missing PostgreSQL schema is created.

    On PostgreSQL it first locks the tables. While other transactions use them it tries again and again, says whom it waits for,
    and ends with exit code 75 if it does not get them.
    """
    from .. import migrations
    from ..database.engine import make_engine

    found = _given(context, place, where)
    with command_on_database(upgrade=found.upgrade):
        if found.app is not None:
            if sql or found.has_own_schema or revision != "head":
                fail("--sql, --schema and --revision go with a database's URL; leave them out with APP", EXIT_USAGE)
            outbox = open_outbox(found)
            with disposing(outbox.store.bound_engine), naming_locks(outbox.store):
                click.echo(upgraded(outbox, lock_timeout=lock_timeout, wait=wait), err=True)
        elif sql:
            click.echo(migrations.sql(found.url or "", revision, schema=found.schema))
        else:
            with disposing(make_engine(found.url or "")) as engine:
                migrations.upgrade(engine, revision, schema=found.schema, lock_timeout=lock_timeout, wait=wait)
                click.echo(_reached(engine, found.schema), err=True)


def _given(context: click.Context, place: str | None, where: dict[str, Any]) -> Given:
    if place is None or names_module(place):
        return given(context, where, app=place)
    if where["app"] is not None and is_typed(context, "app"):
        fail("an application and a URL are given; give one of them", EXIT_USAGE)
    if where["url"] not in (None, place) and is_typed(context, "url"):
        fail("two URLs are given, one of them with --url; give one of them", EXIT_USAGE)
    return Given(url=place, schema=where["schema"], schema_from_environment=not is_typed(context, "schema"))


def upgraded(outbox: Outbox, **rounds: Any) -> str:
    """Upgrade the tables of this outbox, store what its tasks subscribe to and their schedules, and return a sentence about all.

    `rounds` are the options `lock_timeout` and `wait` of `migrations.upgrade`.
    """
    from .. import migrations

    migrations.upgrade(outbox.store.bound_engine, schema=outbox.schema, **rounds)
    outbox.sync_subscriptions()
    outbox.sync_schedules()
    known = [_counted(len(outbox.subscriptions), "subscription")]
    if schedules := outbox.tasks.schedules:
        known.append(_counted(len(schedules), "schedule"))
    return "; ".join([_reached(outbox.store.bound_engine, outbox.schema), *known])


def _counted(count: int, noun: str) -> str:
    return f"{count} {plural(count, noun)} {plural(count, 'is', 'are')} known"


def _reached(engine: Engine, schema: str | None) -> str:
    """Return a sentence that names the database and the present revision of its tables."""
    from .. import migrations
    from ..database.dialects import dialect_for

    revision = migrations.current(engine, schema=schema)
    place = dialect_for(engine.dialect.name, schema=schema).place(engine.url, lambda: None)
    return left_alone(revision) if is_newer(revision) else f"the schema of {place} is now {revision}"
