"""`outboxq grants`: prints or runs the GRANTs that a database role needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from ..database.privileges import Feature, Role
from ..errors import NotPermitted
from .database import app_argument, app_option, given, opened, schema_option, url_option


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
