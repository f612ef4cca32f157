"""Every command. Imports that cost time (alembic, rich) are made inside the commands that need them."""

from __future__ import annotations

import sys

import click

from ..forks import CAN_FORK
from .console import EXIT_USAGE, fail, speaking_plainly
from .database import Given, is_said
from .failed import failed
from .grants import grants
from .history import cleanup_events, partition
from .queues import queue
from .status import status
from .tasks import task
from .upgrade import upgrade
from .verify import verify
from .worker import worker


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="outboxq")
def main() -> None:
    """A transactional outbox and task queue in your own database."""


@main.command()
@click.option("--url", envvar="OUTBOXQ_DATABASE_URL", help="A database to use instead of a fresh SQLite file.")
@click.option(
    "--orders", default=120, show_default=True, type=click.IntRange(20, 5000), help="How many orders to place."
)
@click.option("--workers", default=3, show_default=True, type=click.IntRange(2, 8), help="How many worker processes.")
@click.pass_context
def demo(context: click.Context, /, url: str | None, orders: int, workers: int) -> None:
    """Run a small shop for a few seconds, kill a worker, and check that nothing was lost."""
    from .demo import run

    if not CAN_FORK:
        fail("the demo kills a worker, which needs a system that can fork, such as Linux or macOS", EXIT_USAGE)
    upgrade = None if url is None else Given(url=url, from_environment=not is_said(context, "url")).upgrade
    with speaking_plainly(upgrade):
        sys.exit(run(url, orders=orders, workers=workers))


for command in (upgrade, worker, status, task, failed, queue, partition, cleanup_events, grants, verify):
    main.add_command(command)
main.add_command(cleanup_events, "prune")
