"""`flask outboxq …`: the commands of `outboxq`, for the application that Flask has found."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
from flask import current_app
from flask.cli import AppGroup, with_appcontext

from ..cli.console import EXIT_USAGE, fail, on_store, speaking_plainly
from ..cli.database import OPTIONS
from ..cli.status import status
from ..cli.worker import EPILOG, Rerunnable, serve
from ..cli.worker import worker as worker_of_app

if TYPE_CHECKING:
    from .flask import Outboxq


def commands() -> AppGroup:
    """`worker`, `upgrade` and `status`, which run in the application's context."""
    group = AppGroup("outboxq", help="Transactional outbox and task queue.")
    ours = on_store(status, lambda: _outbox().store)
    assert ours.callback is not None, "every command of ours does something"
    ours.callback = with_appcontext(ours.callback)
    for command in (worker, upgrade, ours):
        group.add_command(command)
    return group


@click.command(
    cls=Rerunnable,
    epilog=EPILOG,
    params=[one for one in worker_of_app.params if one.name not in OPTIONS | {"database_urls"}],
)
@click.pass_context
@with_appcontext
def worker(ctx: click.Context, /, **options: Any) -> None:
    """Run this application's tasks until SIGTERM, SIGINT or SIGHUP.

    Running tasks may finish. A second signal, or SIGQUIT, gives them back at once.
    """
    written = list(ctx.obj)

    def again(lifeline: int) -> list[str]:
        return [sys.executable, *sys.orig_argv[1:], "--lifeline", str(lifeline)]

    if (options["processes"] > 1 or options["reload"]) and sys.orig_argv[-len(written) :] != written:
        fail("--processes and --reload start the flask command again, and this process is none", EXIT_USAGE)
    serve(_outbox, again, **options)


@click.command()
@with_appcontext
def upgrade() -> None:
    """Create or upgrade the tables, and make known what the tasks subscribe to."""
    with speaking_plainly():
        outbox = _outbox()
        outbox.load_tasks()
        outbox.upgrade()
        outbox.sync_subscriptions()
        click.echo(f"the schema is up to date; {len(outbox.subscriptions)} subscriptions are known", err=True)


def _outbox() -> Outboxq:
    found: Outboxq = current_app.extensions["outboxq"]
    return found
