"""`outboxq db`: the schema of the tables, its revisions, and the sizes of the tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ..database.privileges import Feature, Role
from ..database.revisions import OLDEST_SCHEMA, REVISION, is_newer, left_alone
from ..errors import NotPermitted
from ..model import EARLIEST, TaskStatus
from ..model.periods import Every
from ..model.wording import plain, plural, short, size
from .changes import FEW, Exactly, changed, confirmation_options, confirmed, progress
from .console import EXIT_SCHEMA, EXIT_USAGE, command_on_database, fail, merged, show, tell, wants_json, write_json
from .database import (
    Given,
    any_schema,
    app_argument,
    app_option,
    database_options,
    disposing,
    given,
    is_typed,
    names_module,
    naming_locks,
    open_outbox,
    opened,
    rounds_options,
    schema_option,
    url_option,
)
from .groups import Group
from .parameters import SPAN, number_option

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from ..outbox import Outbox
    from ..store import Store
    from ..store.numbers.system import System


@click.group(cls=Group)
def db() -> None:
    """Show the revision, the upgrades and the sizes of the tables."""


@db.command()
@click.option("--check", is_flag=True, help="Exit with code 4 unless the tables have the revision of this release.")
@database_options
@any_schema
def current(store: Store, *, check: bool) -> None:
    """Print the revision of the tables, and that of this release."""
    from .. import migrations

    found = migrations.current(store.bound_engine, schema=store.schema)
    tell(
        _sentence(found),
        {"revision": found, "release": REVISION, "oldest_schema": OLDEST_SCHEMA, "is_current": found == REVISION},
    )
    sys.exit(EXIT_SCHEMA if check and found != REVISION else 0)


def _sentence(found: str | None) -> str:
    if found is None:
        return f"there are no tables; this release makes revision {REVISION}: run outboxq upgrade"
    if found == REVISION:
        return f"{found}, the revision of this release"
    if is_newer(found):
        return f"{found}, of a later release; this one knows revisions up to {REVISION}"
    if found < OLDEST_SCHEMA:
        return f"{found}; this release needs {OLDEST_SCHEMA} at least, and makes {REVISION}: run outboxq upgrade"
    return f"{found}; this release works with it, and brings revision {REVISION}: run outboxq upgrade"


@db.command()
@database_options
@any_schema
def history(store: Store) -> None:
    """List the revisions of the schema and what each brings."""
    from .. import migrations

    found = migrations.current(store.bound_engine, schema=store.schema)
    revisions = migrations.revisions()
    rows = [(one, _state(one, found), text) for one, text in revisions]
    records = [{"revision": one, "applied": _state(one, found) != "pending", "brings": text} for one, text in revisions]
    show(("revision", "", "brings"), rows, records=records)


def _state(revision: str, found: str | None) -> str:
    if found is None or revision > found:
        return "pending"
    return "current" if revision == found else "applied"


@db.command()
@click.option("--from", "start", metavar="REVISION", help="Begin behind this revision. Default: that of the tables.")
@click.option("--to", "end", default="head", show_default=True, metavar="REVISION", help="End with this revision.")
@database_options
@any_schema
def sql(store: Store, start: str | None, end: str) -> None:
    """Print the SQL that upgrades the tables, and change nothing.

    `outboxq upgrade` runs it. Without tables it is the SQL that makes them.
    """
    from .. import migrations

    engine = store.bound_engine
    begin = start if start is not None else migrations.current(engine, schema=store.schema)
    known = [one for one, _ in migrations.revisions()]
    if begin is not None and begin not in {*known, "base"}:
        raise click.BadParameter(f"{begin!r} is no revision; outboxq db history lists them", param_hint="--from")
    if end not in {*known, "head"}:
        raise click.BadParameter(f"{end!r} is no revision; outboxq db history lists them", param_hint="--to")
    last = known[-1] if end == "head" else end
    if begin is not None and begin != "base" and begin >= last:
        text = ""
        if not wants_json():
            click.echo(f"the tables have revision {begin} already", err=True)
    else:
        text = migrations.sql(engine.url, f"{begin or 'base'}:{last}", schema=store.schema)
    if wants_json():
        write_json({"from": begin, "to": last, "sql": text})
    elif text:
        click.echo(text)


@db.command()
@database_options
def sizes(store: Store) -> None:
    """Print the sizes of the tables, and what keeps them large.

    Sizes include indexes. Dead rows are those that PostgreSQL has not vacuumed yet; an old transaction keeps it from that.
    On SQLite, the size is that of the whole file.
    """
    found = store.system()
    rows = [_row(one) for one in found.tables]
    if wants_json():
        write_json(found)
        return
    show(("table", "size", "of it indexes", "rows", "dead rows", "vacuumed"), rows, records=found)
    for sentence in _about(found):
        click.echo(sentence, err=True)


def _row(table: Any) -> tuple[object, ...]:
    return (table.name, _size(table.size), _size(table.index_size), table.rows, table.dead_rows, table.last_vacuumed_at)


def _size(number: int | None) -> str | None:
    return None if number is None else size(number)


def _about(found: System) -> list[str]:
    in_all = "" if found.size is None else f", {size(found.size)} in all"
    sentences = [f"{found.server}, schema {found.revision}{in_all}"]
    if found.partitions:
        sentences.append(f"the history has {len(found.partitions)} {plural(len(found.partitions), 'partition')}")
    if found.oldest_snapshot is not None:
        seconds = found.oldest_snapshot.total_seconds()
        sentences.append(f"the oldest transaction is {seconds:.0f} s old; rows that died since cannot be vacuumed")
    return sentences


@click.command()
@click.argument("name")
@click.option(
    "--role",
    required=True,
    type=click.Choice(Role, case_sensitive=False),
    help="Purpose of the role. A role with several purposes is granted each.",
)
@click.option(
    "--with",
    "features",
    multiple=True,
    type=click.Choice(Feature, case_sensitive=False),
    help="Feature that a producer uses. May be repeated.",
)
@click.option(
    "--apply", is_flag=True, help="Run the GRANTs in one transaction, and print them. By default they are only printed."
)
@url_option
@schema_option
@app_option
@app_argument
@click.pass_context
def grants(
    context: click.Context, /, name: str, role: Role, features: Sequence[Feature], *, apply: bool, **where: Any
) -> None:
    """Print the GRANTs that a PostgreSQL role needs.

    NAME is the role. Connect as the owner of outboxq's tables.

    \b
    producer  enqueues tasks; add --with for emit, idempotency, replace, results, batches
    worker    runs tasks; grant producer too if its tasks enqueue others
    viewer    reads: status, task list, verify
    operator  reads and changes: task cancel, failed redrive, prune
    migrator  creates the tables, in a schema that exists already
    """  # noqa: D301 - click reads the backspace
    with opened(given(context, where)) as store:
        store.rights.ensure_roles()
        if role is not Role.MIGRATOR:
            try:
                store.ensure_current()
            except NotPermitted as error:
                sentence = "the present role cannot read outboxq's tables; run it as the owner of the tables"
                raise NotPermitted(sentence) from error
        for statement in (store.rights.grant if apply else store.rights.grants)(role, name, features):
            click.echo(f"{statement};")


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


@click.command()
@click.option(
    "--every",
    type=click.Choice([one.value for one in Every]),
    default="month",
    show_default=True,
    help="Time span of one partition.",
)
@number_option("--ahead", help="Number of future partitions to create.", default=3)
@rounds_options
@confirmation_options
@database_options
def partition(
    store: Store, every: str, ahead: int, *, lock_timeout: timedelta, wait: timedelta, yes: bool, dry_run: bool
) -> None:
    """Partition the task history by time (PostgreSQL).

    `prune` can then drop old partitions whole. The tables are locked meanwhile, for about a second with a few million tasks. No
    command undoes it, so the first run asks. Run again, the command only creates missing partitions, without a question.
    """
    from .. import migrations

    make = partial(
        migrations.partition,
        store.bound_engine,
        every=every,
        ahead=ahead,
        schema=store.schema,
        lock_timeout=lock_timeout,
        wait=wait,
    )
    made = make(dry_run=True)
    if not dry_run:
        is_first = any(name.endswith("_first") for name in made)  # the tables become partitions of that name
        what = f"tables for the task history by {every}, which is locked and read once meanwhile"
        if not confirmed(Exactly(number=len(made)), what, yes=yes or not is_first, dry_run=False, done="made"):
            return
        with progress("made", len(made)):
            made = make()
    if wants_json():
        change = changed("made", len(made), Exactly(number=len(made)), dry_run=dry_run)
        write_json(merged(change, {"tables": made}))
        return
    for name in made:
        click.echo(name)
    were = "would be" if dry_run else plural(len(made), "was", "were")
    click.echo(f"{len(made)} {plural(len(made), 'table')} {were} made", err=True)


@click.command()
@click.option(
    "--older-than", required=True, type=SPAN, help="Minimum age, counted from the end of the task, e.g. 90d or 7d12h."
)
@click.option(
    "--failed",
    is_flag=True,
    help="Delete dead letters too. They are otherwise kept until they are redriven or discarded.",
)
@click.option(
    "--whole-partitions",
    is_flag=True,
    help="Delete no single rows: drop each partition once all of it is old. Needs PostgreSQL and `partition`.",
)
@confirmation_options
@database_options
def prune(
    store: Store, older_than: timedelta, *, failed: bool, whole_partitions: bool, yes: bool, dry_run: bool
) -> None:
    """Delete finished tasks and their events by age.

    A finished task is Completed or Cancelled. Unfinished tasks are kept, whatever their age.
    """
    statuses = [TaskStatus.COMPLETED, *([TaskStatus.FAILED] if failed else []), TaskStatus.CANCELLED]
    now = store.now()
    before = now - min(older_than, now - EARLIEST)
    # This moment and not the age: what becomes old while the question is read was not counted.
    prune = partial(store.prune, before, statuses=statuses, whole_partitions=whole_partitions)

    @cache
    def count() -> Exactly:
        return Exactly(number=prune(dry_run=True))

    def first() -> list[str]:
        oldest = (
            one
            for status in statuses
            for one in store.tasks(status=status, until=before, after=UUID(int=0), limit=FEW)
            if one.completed_at is not None and one.completed_at < before
        )
        return [f"{one.id}  {one.task_name}  {one.status}" for one in sorted(oldest, key=lambda one: one.id)[:FEW]]

    names = " and ".join(filter(None, (", ".join(statuses[:-1]), statuses[-1])))
    what = f"{names} tasks that ended before {short(before)} UTC, with their events"
    if not confirmed(
        count, what, yes=yes, dry_run=dry_run, done="deleted", first=lambda: [] if whole_partitions else first()
    ):
        return
    total = None if yes else count()  # with millions of tasks, counting takes seconds
    with progress("deleted", total, stoppable=True) as on_progress:
        deleted = prune(stop=on_progress.stop, on_progress=on_progress)
    done = f"{deleted} {plural(deleted, 'task was deleted with its', 'tasks were deleted with their')} events"
    tell(done, changed("deleted", deleted, total))


@click.command()
@click.option("--repair", is_flag=True, help="Repair what can be repaired without guessing.")
@database_options
def verify(store: Store, *, repair: bool) -> None:
    """Check that outboxq's tables are consistent.

    Tasks, outbox, leases, keys and dead letters are compared with the events. The exit code is 1 if they disagree. Nothing is
    changed without --repair, which writes only what the events say already, so it asks nothing.
    """
    with progress("checked", commits=False) as on_progress:
        broken = store.verify(repair=repair, on_progress=on_progress)
    if wants_json():
        write_json(broken)
        sys.exit(1 if broken else 0)
    for violation in broken:
        examples = ", ".join(str(example) for example in violation.examples)
        repaired = f"; repaired {violation.repaired}" if repair else ""
        sentence = f"{violation.count} × {violation.name}: {violation.meaning} ({examples}){repaired}"
        click.echo(plain(sentence))
    if not broken:
        click.echo("every invariant holds", err=True)
    sys.exit(1 if broken else 0)
