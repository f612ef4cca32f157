"""`outboxq grants`: prints or runs the GRANTs that a database role needs."""

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
    help="Purpose of the role. A role with several purposes is granted each.",
)
@click.option(
    "--with",
    "features",
    multiple=True,
    type=click.Choice(Feature, case_sensitive=False),
    help="Feature that a producer uses. May be given again.",
)
@click.option(
    "--apply", is_flag=True, help="Run the GRANTs in one transaction, and print them. By default they are only printed."
)
@where_options
@click.pass_context
def grants(
    context: click.Context, /, name: str, role: Role, features: Sequence[Feature], *, apply: bool, **where: Any
) -> None:
    """Print the GRANTs that a PostgreSQL role needs.

    NAME is the role. Connect as the owner of outboxq's tables.

    \b
    producer  enqueues tasks; add --with for emit, idempotency and replace
    worker    runs tasks; grant producer too if its tasks enqueue others
    viewer    reads: status, task list, verify
    operator  reads and changes: task cancel, failed redrive, prune
    migrator  creates the tables, in a schema that exists already
    """  # noqa: D301 - click reads the backspace
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
    """Raise SchemaOutOfDate if the tables are missing, NotPermitted if the present role cannot read them."""
    try:
        permissions.ensure_current()
    except NotPermitted as error:
        raise NotPermitted(
            "the present role cannot read outboxq's tables; run it as the owner of the tables"
        ) from error
