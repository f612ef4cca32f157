"""`outboxq demo`: run a shop with deliberate failures, and check that nothing was lost."""

from __future__ import annotations

import sys

import click

from ...model.forks import CAN_FORK
from ..console import command_on_database, fail
from ..database import Given, is_typed
from ..parameters import number_option, option


@click.command()
@option("--url", envvar="OUTBOXQ_DATABASE_URL", help="Use this database instead of a temporary SQLite file.")
@number_option("--orders", help="Number of orders to place.", least=20, most=5000, default=120)
@number_option("--workers", help="Number of worker processes.", least=2, most=8, default=3)
@click.pass_context
def demo(context: click.Context, /, url: str | None, orders: int, workers: int) -> None:
    """Run a small shop, kill a worker, and check for lost tasks.

    The demo takes a few seconds. It prints the result of each check, and exits with code 1 if any check fails.
    """
    if not CAN_FORK:
        fail("the demo needs a system that can fork, such as Linux or macOS, because it kills a worker")
    from .run import run

    upgrade = None if url is None else Given(url=url, from_environment=not is_typed(context, "url")).upgrade
    with command_on_database(upgrade):
        sys.exit(run(url, orders=orders, workers=workers))
