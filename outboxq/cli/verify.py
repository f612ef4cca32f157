"""`outboxq verify`: checks that the tables tell one story."""

from __future__ import annotations

import sys

import click

from ..store import Store
from .console import database_options


@click.command()
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
