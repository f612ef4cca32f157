"""`outboxq verify`: checks that the tables are consistent."""

from __future__ import annotations

import sys

import click

from ..store import Store
from .console import database_options


@click.command()
@click.option("--repair", is_flag=True, help="Repair what can be repaired without guessing.")
@database_options
def verify(store: Store, *, repair: bool) -> None:
    """Check that outboxq's tables are consistent.

    Tasks, outbox, leases, keys and dead letters are compared with the events. The exit code is 1 if they disagree.
    """
    broken = store.verify(repair=repair)
    for violation in broken:
        examples = ", ".join(str(example) for example in violation.examples)
        repaired = f"; repaired {violation.repaired}" if repair else ""
        click.echo(f"{violation.count} × {violation.name}: {violation.meaning} ({examples}){repaired}")
    if not broken:
        click.echo("every invariant holds", err=True)
    sys.exit(1 if broken else 0)
