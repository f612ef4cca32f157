"""`outboxq upgrade`: creates the tables, or upgrades them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .. import migrations
from ..database.engine import make_engine
from ..database.revisions import is_newer, left_alone
from .console import EXIT_USAGE, fail, speaking_plainly
from .database import Given, app_option, given, is_typed, open_outbox, place_of, schema_option, url_option
from .loading import names_module

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
@click.pass_context
def upgrade(context: click.Context, /, place: str | None, revision: str, *, sql: bool, **where: Any) -> None:
    """Create or upgrade outboxq's tables and subscriptions.

    APP is written module:outbox, e.g. shop:outbox: the command upgrades the tables in its database and stores what its tasks
    subscribe to. With a URL in place of APP, only the tables are upgraded. A missing PostgreSQL schema is created.
    """
    found = _given(context, place, where)
    with speaking_plainly(upgrade=found.upgrade):
        if found.app is not None:
            if sql or found.has_own_schema or revision != "head":
                fail("--sql, --schema and --revision go with a database's URL; leave them out with APP", EXIT_USAGE)
            _upgrade_app(found)
            return
        if sql:
            click.echo(migrations.sql(found.url or "", revision, schema=found.schema))
            return
        engine = make_engine(found.url or "")
        try:
            migrations.upgrade(engine, revision, schema=found.schema)
            click.echo(reached(engine, found.schema), err=True)
        finally:
            engine.dispose()


def _given(context: click.Context, place: str | None, where: dict[str, Any]) -> Given:
    if place is None or names_module(place):
        return given(context, where, app=place)
    if where["app"] is not None and is_typed(context, "app"):
        fail("an application and a URL are given; give one of them", EXIT_USAGE)
    if where["url"] not in (None, place) and is_typed(context, "url"):
        fail("two URLs are given, one of them with --url; give one of them", EXIT_USAGE)
    return Given(url=place, schema=where["schema"], schema_from_environment=not is_typed(context, "schema"))


def _upgrade_app(found: Given) -> None:
    outbox = open_outbox(found)
    try:
        click.echo(upgraded(outbox), err=True)
    finally:
        outbox.store.bound_engine.dispose()


def upgraded(outbox: Outbox) -> str:
    """Upgrade the tables of this outbox, store the subscriptions of its tasks, and return a sentence about both."""
    outbox.upgrade()
    outbox.sync_subscriptions()
    count = len(outbox.subscriptions)
    known = "1 subscription is known" if count == 1 else f"{count} subscriptions are known"
    return f"{reached(outbox.store.bound_engine, outbox.schema)}; {known}"


def reached(engine: Engine, schema: str | None) -> str:
    """Return a sentence that names the database and the present revision of its tables."""
    revision = migrations.current(engine, schema=schema)
    return left_alone(revision) if is_newer(revision) else f"the schema of {place_of(engine, schema)} is now {revision}"
