"""Every command. Imports that cost time (alembic, rich) are made inside the commands that need them."""

from __future__ import annotations

import sys

import click

from ..engine import EMBEDDED, make_engine
from ..forks import CAN_FORK
from ..revisions import is_newer, left_alone
from ..store import Store
from .console import EXIT_USAGE, database_options, fail, speaking_plainly
from .failed import failed
from .grants import grants
from .history import cleanup_events, partition
from .loading import load, names_module
from .queues import queue
from .status import status
from .tasks import task
from .worker import worker


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="outboxq")
def main() -> None:
    """A transactional outbox and task queue in your own database."""


@main.command()
@click.option("--url", envvar="OUTBOXQ_DATABASE_URL", help="A database to use instead of a fresh SQLite file.")
@click.option(
    "--orders", default=120, show_default=True, type=click.IntRange(20, 5000), help="How many orders to place."
)
@click.option("--workers", default=3, show_default=True, type=click.IntRange(2, 8), help="How many worker processes.")
def demo(url: str | None, orders: int, workers: int) -> None:
    """Run a small shop for a few seconds, kill a worker, and check that nothing was lost."""
    from .demo import run

    if not CAN_FORK:
        fail("the demo kills a worker, which needs a system that can fork, such as Linux or macOS", EXIT_USAGE)
    with speaking_plainly():
        sys.exit(run(url, orders=orders, workers=workers))


@main.command()
@click.argument("database", required=False, envvar="OUTBOXQ_DATABASE_URL", metavar="[URL | APP]")
@click.option(
    "--schema", envvar="OUTBOXQ_SCHEMA", help="The PostgreSQL schema of outboxq's tables; created if missing."
)
@click.option("--revision", default="head", show_default=True, help="Where to stop.")
@click.option("--sql", is_flag=True, help="Print the SQL and change nothing.")
def upgrade(database: str | None, schema: str | None, revision: str, *, sql: bool) -> None:
    """Create or upgrade the tables of the database URL, or those of APP (module:outbox), which also makes known what the
    tasks of APP subscribe to.
    """
    from .. import migrations

    with speaking_plainly():
        if database is not None and names_module(database):
            if sql or schema or revision != "head":
                fail("--sql, --schema and --revision go with a database's URL; APP knows its own", EXIT_USAGE)
            _upgrade_app(database)
            return
        if sql:
            click.echo(migrations.sql(database or EMBEDDED, revision, schema=schema))
            return
        engine = make_engine(database or None)
        try:
            migrations.upgrade(engine, revision, schema=schema)
            found = migrations.current(engine, schema=schema)
            click.echo(left_alone(found) if is_newer(found) else f"the schema is now {found}", err=True)
        finally:
            engine.dispose()


def _upgrade_app(app: str) -> None:
    outbox = load(app)
    if not outbox.is_bound:
        outbox.bind(make_engine(None))
    outbox.upgrade()
    outbox.sync_subscriptions()
    click.echo(f"the schema is up to date; {len(outbox.subscriptions)} subscriptions are known", err=True)


for command in (worker, status, task, failed, queue, partition, cleanup_events, grants):
    main.add_command(command)
main.add_command(cleanup_events, "prune")


@main.command()
@click.option("--repair", is_flag=True, help="Put right what can be put right without guessing.")
@database_options
def verify(store: Store, *, repair: bool) -> None:
    """Check that tasks, outbox, leases, keys and events tell one story. Exit code 1 if they do not."""
    broken = store.verify(repair=repair)
    for violation in broken:
        examples = ", ".join(str(example) for example in violation.examples)
        repaired = f"; repaired {violation.repaired}" if repair else ""
        click.echo(f"{violation.count} × {violation.name}: {violation.meaning} ({examples}){repaired}")
    if not broken:
        click.echo("every invariant holds", err=True)
    sys.exit(1 if broken else 0)
