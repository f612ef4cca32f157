"""`outboxq db`: the tables' schema, its revisions, and the tables' sizes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import click

from ..database.privileges import Feature, Role
from ..database.revisions import OLDEST_SCHEMA, REVISION, is_newer, left_alone
from ..errors import NotPermitted
from ..model import EARLIEST, TaskStatus
from ..model.actions import CommandAction
from ..model.periods import Every
from ..model.wording import brief, plain, plural, short, size
from ..operating.fields import REASON
from ..operating.verb import Noun
from . import database
from .changes import FEW, Exactly, changed, confirmation_options, confirmed, progress
from .console import EXIT_SCHEMA, command_on_database, fail, merged, show, tell, wants_json, write_json
from .database import any_schema, app_argument, app_option, database_options, rounds_options, schema_option, url_option
from .groups import Group
from .parameters import SPAN, choice_option, flag, number_option, option, repeated, span_option
from .verbs import add_verbs, adding, with_fields

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from ..outbox import Outbox
    from ..store import Store


@click.group(cls=Group)
def db() -> None:
    """Show the revision, the upgrades and the sizes of the tables."""


@db.command()
@flag("--check", help="Exit with code 4 unless the tables have this release's revision.")
@database_options
@any_schema
def current(store: Store, *, check: bool) -> None:
    """Print the revisions of the tables and of this release."""
    from .. import migrations

    found = migrations.current(store.bound_engine, schema=store.schema)
    is_current = found == REVISION
    record = {"revision": found, "release": REVISION, "oldest_schema": OLDEST_SCHEMA, "is_current": is_current}
    tell(_sentence(found), record)
    sys.exit(EXIT_SCHEMA if check and not is_current else 0)


def _sentence(found: str | None) -> str:
    if found is None:
        return f"the database has no outboxq tables; run outboxq upgrade to create them at revision {REVISION}"
    if found == REVISION:
        return f"{found}, the revision of this release"
    if is_newer(found):
        return f"{found}, from a later release; this release knows revisions up to {REVISION}"
    if found < OLDEST_SCHEMA:
        return f"{found}; this release needs at least {OLDEST_SCHEMA}: run outboxq upgrade to move to {REVISION}"
    return f"{found}; this release works with it, but you can run outboxq upgrade to move to revision {REVISION}"


@db.command()
@database_options
@any_schema
def history(store: Store) -> None:
    """List the schema revisions, and say what each one adds."""
    from .. import migrations

    found = migrations.current(store.bound_engine, schema=store.schema) or ""
    rows, records = [], []
    for revision, text in migrations.revisions():
        is_applied = revision <= found
        rows.append((revision, "pending" if not is_applied else "current" if revision == found else "applied", text))
        records.append({"revision": revision, "applied": is_applied, "brings": text})
    show(("revision", "", "brings"), rows, records=records)


@db.command()
@option("--from", "start", metavar="REVISION", help="Revision to upgrade from. Default: the tables' current revision.")
@option("--to", "end", default="head", show_default=True, metavar="REVISION", help="Revision to upgrade to.")
@database_options
@any_schema
def sql(store: Store, start: str | None, end: str) -> None:
    """Print the SQL that upgrades the tables, and change nothing.

    `outboxq upgrade` would run the same SQL. If the database has no outboxq tables yet, the SQL creates them.
    """
    from .. import migrations

    engine = store.bound_engine
    begin = start if start is not None else migrations.current(engine, schema=store.schema)
    known = [one for one, _ in migrations.revisions()]
    for name, revision, word in (("--from", begin, "base"), ("--to", end, "head")):
        if revision is not None and revision not in {*known, word}:
            hint = "outboxq db history lists the revisions"
            raise click.BadParameter(f"{revision!r} is not a revision; {hint}", param_hint=name)
    last = known[-1] if end == "head" else end
    text = ""
    if begin is None or begin == "base" or begin < last:
        text = migrations.sql(engine.url, f"{begin or 'base'}:{last}", schema=store.schema)
    if wants_json():
        write_json({"from": begin, "to": last, "sql": text})
    elif text:
        click.echo(text)
    else:
        click.echo(f"the tables already have revision {begin}", err=True)


@db.command()
@database_options
def sizes(store: Store) -> None:
    """Print the sizes of the tables, and what keeps them large.

    Sizes include indexes. Dead rows are deleted or replaced rows that PostgreSQL has not vacuumed yet, perhaps because
    an old transaction prevents vacuuming. On SQLite, only the size of the whole file is known.
    """
    found = store.system()
    rows = [(t.name, size(t.size), size(t.index_size), t.rows, t.dead_rows, t.last_vacuumed_at) for t in found.tables]
    show(("table", "size", "indexes", "rows", "dead rows", "vacuumed"), rows, records=found)
    if wants_json():
        return
    in_all = "" if found.size is None else f", {size(found.size)} in all"
    click.echo(f"{found.server}, schema {found.revision}{in_all}", err=True)
    if found.partitions:
        click.echo(f"the history has {len(found.partitions)} {plural(len(found.partitions), 'partition')}", err=True)
    if found.snapshots:
        oldest = found.snapshots[0]
        click.echo(plain(f"rows that died in the last {oldest.since} cannot be vacuumed: {oldest}"), err=True)


add_verbs(db, Noun.SESSION)
WAIT: Final = timedelta(seconds=10)
"""The time within which a server usually starts if it has little to recover."""
_PAUSE: Final = 0.5
"""Seconds between two attempts to connect."""

server_option = span_option(
    "--wait-for-server",
    help="Time to wait for a server that refuses connections or is starting (PostgreSQL). With 0s, the command does not wait.",
    default=f"{WAIT.total_seconds():g}s",
)


@click.command()
@click.argument("name")
@option(
    "--role",
    required=True,
    type=click.Choice(Role, case_sensitive=False),
    help="Purpose of the role. Run the command once for each purpose.",
)
@repeated(
    "--with",
    "features",
    type=click.Choice(Feature, case_sensitive=False),
    help="Feature that the producer uses. May be repeated.",
)
@flag("--apply", help="Print the GRANTs and also run them, in one transaction.")
@url_option
@schema_option
@app_option
@app_argument
@click.pass_context
def grants(
    context: click.Context, /, name: str, role: Role, features: Sequence[Feature], *, apply: bool, **where: Any
) -> None:
    """Print the GRANTs that a PostgreSQL role needs.

    NAME is the role. Connect as the owner of the tables.

    \b
    producer  enqueues tasks; add --with for emit, batches and other features
    worker    runs tasks; grant producer too if its tasks enqueue other tasks
    viewer    reads: status, task list, verify
    operator  reads and changes: task cancel, failed redrive, prune
    migrator  creates the tables, in an existing schema
    """  # noqa: D301 - click reads the backspace
    with database.opened(database.given(context, where)) as store:
        store.rights.ensure_roles()
        if role is not Role.MIGRATOR:
            try:
                store.ensure_current()
            except NotPermitted as error:
                sentence = "the current role cannot read outboxq's tables; run the command as their owner"
                raise NotPermitted(sentence) from error
        for statement in (store.rights.grant if apply else store.rights.grants)(role, name, features):
            click.echo(f"{statement};")


@click.command()
@click.argument("place", required=False, metavar="[APP | URL]")
@url_option
@schema_option
@app_option
@option("--revision", default="head", show_default=True, help="Revision to upgrade to. Cannot be used with APP.")
@flag("--sql", help="Print the SQL, but do not run it.")
@rounds_options
@server_option
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
    wait_for_server: timedelta,
    **where: Any,
) -> None:
    """Create or upgrade the tables, subscriptions and schedules.

    Write APP as module:outbox, e.g. shop:outbox. The command upgrades the tables in APP's database, and stores the
    subscriptions and schedules of APP's tasks. With a URL instead of APP, the command upgrades only the tables. If the
    PostgreSQL schema does not exist, the command creates it.

    On PostgreSQL, the command waits for a server that is starting, and then locks the tables. While other transactions
    are using the tables, it keeps trying and names those transactions. If it cannot get the locks in time, it exits
    with code 75.
    """
    from .. import migrations
    from ..database.engine import make_engine

    found = _given(context, place, where)
    with command_on_database(upgrade=found.upgrade):
        if found.app is not None:
            if sql or found.has_own_schema or revision != "head":
                fail("--sql, --schema and --revision need a URL; leave them out if you give APP")
            outbox = database.open_outbox(found)
            with database.disposing(outbox.store.bound_engine), database.naming_locks(outbox.store):
                await_server(outbox.store.bound_engine, wait_for_server)
                click.echo(upgraded(outbox, lock_timeout=lock_timeout, wait=wait), err=True)
        elif sql:
            click.echo(migrations.sql(found.url or "", revision, schema=found.schema))
        else:
            with database.disposing(make_engine(found.url or "")) as engine:
                await_server(engine, wait_for_server)
                migrations.upgrade(engine, revision, schema=found.schema, lock_timeout=lock_timeout, wait=wait)
                click.echo(_reached(engine, found.schema), err=True)


def _given(context: click.Context, place: str | None, where: dict[str, Any]) -> database.Given:
    if place is None or database.names_module(place):
        return database.given(context, where, app=place)
    if where["app"] is not None and database.is_typed(context, "app"):
        fail("an application and a URL are given; give only one of them")
    if where["url"] not in (None, place) and database.is_typed(context, "url"):
        fail("two URLs are given, one of them with --url; give only one of them")
    return database.Given(
        url=place, schema=where["schema"], schema_from_environment=not database.is_typed(context, "schema")
    )


def upgraded(outbox: Outbox, **rounds: Any) -> str:
    """Upgrade this outbox's tables, store the subscriptions and schedules of its tasks, and return a summary.

    `rounds` are the `lock_timeout` and `wait` arguments of `migrations.upgrade`.
    """
    from .. import migrations

    migrations.upgrade(outbox.store.bound_engine, schema=outbox.schema, **rounds)
    outbox.sync_subscriptions()
    outbox.sync_schedules()
    sentences = [_reached(outbox.store.bound_engine, outbox.schema)]
    for count, noun in ((len(outbox.subscriptions), "subscription"), (len(outbox.tasks.schedules), "schedule")):
        if count or noun == "subscription":
            sentences.append(f"{count} {plural(count, noun)} {plural(count, 'is', 'are')} declared")
    return "; ".join(sentences)


def _reached(engine: Engine, schema: str | None) -> str:
    """Return a sentence that names the database and the revision of its tables."""
    from .. import migrations
    from ..database.dialects import dialect_for

    revision = migrations.current(engine, schema=schema)
    place = dialect_for(engine.dialect.name, schema=schema).place(engine.url, lambda: None)
    return left_alone(revision) if is_newer(revision) else f"the schema of {place} is now {revision}"


@click.command()
@choice_option("--every", kind=Every, default=Every.MONTH, help="Time span that each partition covers.")
@number_option("--ahead", help="Number of future partitions to create.", default=3)
@rounds_options
@confirmation_options
@database_options
def partition(store: Store, every: str, ahead: int, *, yes: bool, dry_run: bool, **rounds: Any) -> None:
    """Partition the task history by time (PostgreSQL).

    `prune` can then drop whole partitions. The tables are locked while they are changed, for about a second if they
    contain a few million tasks. No command can undo the change, so the first run asks for confirmation. Later runs only
    create missing partitions, and do not ask for confirmation.
    """
    from .. import migrations

    make = partial(migrations.partition, store.bound_engine, every=every, ahead=ahead, schema=store.schema, **rounds)
    made = make(dry_run=True)
    if not dry_run:
        is_first = any(name.endswith("_first") for name in made)  # the tables become partitions with that name
        what = f"tables that partition the task history by {every} (the history is locked and read once)"
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
    click.echo(f"{len(made)} {plural(len(made), 'table')} {were} created", err=True)


@click.command()
@option("--older-than", required=True, type=SPAN, help="Minimum time since a task ended, e.g. 90d or 7d12h.")
@flag("--failed", help="Also delete dead letters. Default: keep them.")
@flag("--whole-partitions", help="Drop only whole old partitions (PostgreSQL, after `outboxq partition`).")
@number_option(
    "--batch",
    help="Number of tasks to delete per transaction. Default: 50 on SQLite; on PostgreSQL, as many as can be deleted in about 50 ms.",
)
@span_option("--pause", help="Pause between transactions. Default: depends on how long each transaction takes.")
@with_fields(REASON)
@confirmation_options
@database_options
def prune(
    store: Store, older_than: timedelta, *, failed: bool, reason: str, yes: bool, dry_run: bool, **options: Any
) -> None:
    """Delete finished tasks and their events by age.

    A finished task is Completed or Cancelled. Unfinished tasks are kept at any age.
    """
    from ..store.retention import first_prunable

    statuses = [TaskStatus.COMPLETED, *([TaskStatus.FAILED] if failed else []), TaskStatus.CANCELLED]
    now = store.now()
    before = now - min(older_than, now - EARLIEST)
    # A fixed time, not an age: tasks that become old enough while the user reads the question were not counted.
    prune = partial(store.prune, before, statuses=statuses, **options)

    @cache
    def count() -> Exactly:
        return Exactly(number=prune(dry_run=True))

    def first() -> list[str]:
        whole = options["whole_partitions"]
        found = first_prunable(store, before, statuses=statuses, whole_partitions=whole, limit=FEW)
        return [f"{row['id']}  {row['task_name']}  {row['status']}" for row in found]

    names = f"{', '.join(statuses[:-1])} and {statuses[-1]}"
    what = f"{names} tasks that ended before {short(before)} UTC, with their events"
    if not confirmed(count, what, yes=yes, dry_run=dry_run, done="deleted", first=first):
        return
    total = None if yes else count()  # with millions of tasks, counting takes seconds
    details = {"before": before, **({"failed": True} if failed else {})}
    with progress("deleted", total, stoppable=True) as on_progress:
        on_change = adding(store, CommandAction.PRUNE, details=details, reason=reason)
        deleted = prune(stop=on_progress.stop, on_progress=on_progress, on_change=on_change)
    done = f"{deleted} {plural(deleted, 'task was deleted with its', 'tasks were deleted with their')} events"
    tell(done, changed("deleted", deleted, total))


@click.command()
@flag("--repair", help="Repair whatever can be repaired without guesswork.")
@database_options
def verify(store: Store, *, repair: bool) -> None:
    """Check that outboxq's tables are consistent.

    Tasks, outbox entries, leases, keys and dead letters are compared with the events. The exit code is 1 if they
    disagree. Only --repair changes anything. This option writes only what the events already record, so it does not
    ask for confirmation.
    """
    with progress("checked", commits=False) as on_progress:
        broken = store.verify(repair=repair, on_progress=on_progress)
    if wants_json():
        write_json(broken)
    elif not broken:
        click.echo("every invariant holds", err=True)
    else:
        for one in broken:
            examples, repaired = ", ".join(map(str, one.examples)), f"; repaired {one.repaired}" if repair else ""
            click.echo(plain(f"{one.count} × {one.name}: {one.meaning} ({examples}){repaired}"))
    sys.exit(1 if broken else 0)


def await_server(engine: Engine, longest: timedelta = WAIT) -> None:
    """Wait until the server accepts a connection, until an error shows that the server is not merely starting, or until
    the time is up. The next statement reports any error.
    """
    from sqlalchemy.exc import OperationalError

    from ..database.dialects import dialect_for

    deadline, is_known = time.monotonic() + longest.total_seconds(), False
    while True:
        try:
            with engine.connect():
                return
        except OperationalError as error:
            if not dialect_for(engine.dialect.name).is_starting(error) or time.monotonic() >= deadline:
                return
            if not is_known:
                reason = plain(" ".join(str(error.orig).split()))
                click.echo(f"outboxq: waiting up to {brief(longest)} for the database: {reason}", err=True)
                is_known = True
        time.sleep(_PAUSE)
