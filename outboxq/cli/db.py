"""`outboxq db`: the schema of the tables, its revisions, and the sizes of the tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ..database.revisions import OLDEST_SCHEMA, REVISION, is_newer
from ..model.wording import plural
from .console import EXIT_SCHEMA
from .database import any_schema, database_options
from .groups import Group
from .output import show, tell, wants_json, write_json

if TYPE_CHECKING:
    from ..store import Store
    from ..store.system import System

_UNITS = ("B", "kB", "MB", "GB", "TB")


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
    return (
        table.name,
        written_size(table.size),
        written_size(table.index_size),
        table.rows,
        table.dead_rows,
        table.last_vacuumed_at,
    )


def _about(found: System) -> list[str]:
    size = "" if found.size is None else f", {written_size(found.size)} in all"
    sentences = [f"{found.server}, schema {found.revision}{size}"]
    if found.partitions:
        sentences.append(f"the history has {len(found.partitions)} {plural(len(found.partitions), 'partition')}")
    if found.oldest_snapshot is not None:
        seconds = found.oldest_snapshot.total_seconds()
        sentences.append(f"the oldest transaction is {seconds:.0f} s old; rows that died since cannot be vacuumed")
    return sentences


def written_size(number: int | None) -> str | None:
    """Return the bytes as people read them: ``12 kB``, ``1.5 GB``."""
    if number is None:
        return None
    size = float(number)
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {_UNITS[-1]}"
