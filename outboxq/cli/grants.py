"""`outboxq grants`: what a database role needs, printed or granted."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..engine import make_engine
from ..errors import NotPermitted
from ..privileges import Feature, Role
from ..store import Permissions
from .console import speaking_plainly


@click.command()
@click.argument("name")
@click.option(
    "--role",
    required=True,
    type=click.Choice(Role, case_sensitive=False),
    help="What NAME is to do. Who does several things is granted each.",
)
@click.option(
    "--with",
    "features",
    multiple=True,
    type=click.Choice(Feature, case_sensitive=False),
    help="What a producer does besides; may be given again.",
)
@click.option("--apply", is_flag=True, help="Run them in one transaction; by default they are only printed.")
@click.option(
    "--url", envvar="OUTBOXQ_DATABASE_URL", required=True, show_envvar=True, help="The database, as its owner."
)
@click.option("--schema", envvar="OUTBOXQ_SCHEMA", help="The PostgreSQL schema of outboxq's tables.", show_envvar=True)
def grants(name: str, role: Role, features: Sequence[Feature], url: str, schema: str | None, *, apply: bool) -> None:
    r"""Print the GRANTs that the PostgreSQL role NAME needs, and no more.

    \b
    producer  enqueues; --with emit, idempotency or replace, where it does that
    worker    runs tasks; a producer too, where its tasks enqueue
    viewer    looks: status, task list, verify
    operator  looks and changes: task cancel, failed redrive, prune
    migrator  makes the tables, in a schema that is there
    """
    with speaking_plainly():
        engine = make_engine(url)
        try:
            permissions = Permissions(engine, schema=schema)
            permissions.ensure_roles()
            if role is not Role.MIGRATOR:
                _look_at_tables(permissions)
            for statement in (permissions.grant if apply else permissions.grants)(role, name, features):
                click.echo(f"{statement};")
        finally:
            engine.dispose()


def _look_at_tables(permissions: Permissions) -> None:
    """Raise SchemaOutOfDate where they are not there; NotPermitted to a role that cannot even look, and so grants nothing."""
    try:
        permissions.ensure_current()
    except NotPermitted as error:
        raise NotPermitted(
            "the present role cannot read outboxq's tables; run it as the owner of the tables"
        ) from error
