"""`outboxq grants`: what a database role needs, printed or granted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from ..database.privileges import Feature, Role
from ..errors import NotPermitted
from ..store import Permissions
from .console import speaking_plainly
from .database import given, open_store, where_options


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
@where_options
@click.pass_context
def grants(
    context: click.Context, /, name: str, role: Role, features: Sequence[Feature], *, apply: bool, **where: Any
) -> None:
    r"""Print the GRANTs that the PostgreSQL role NAME needs, and no more.

    \b
    producer  enqueues; --with emit, idempotency or replace, where it does that
    worker    runs tasks; a producer too, where its tasks enqueue
    viewer    looks: status, task list, verify
    operator  looks and changes: task cancel, failed redrive, prune
    migrator  makes the tables, in a schema that is there

    The database is named as the owner of its tables.
    """
    found = given(context, where)
    with speaking_plainly(upgrade=found.upgrade):
        store = open_store(found)
        engine = store.bound_engine
        try:
            permissions = Permissions(engine, schema=store.schema)
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
