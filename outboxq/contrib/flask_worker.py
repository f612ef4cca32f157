"""`flask outboxq worker` and `flask outboxq upgrade`, which differ from the commands of `outboxq`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
from flask import current_app
from flask.cli import with_appcontext

from ..cli.console import EXIT_USAGE, fail, speaking_plainly
from ..cli.groups import DATABASE_PARAMETERS
from ..cli.upgrade import upgraded
from ..cli.worker import EPILOG, Rerunnable, serve
from ..cli.worker import worker as worker_of_app

if TYPE_CHECKING:
    from .flask import Outboxq


@click.command(
    cls=Rerunnable, epilog=EPILOG, params=[one for one in worker_of_app.params if one.name not in DATABASE_PARAMETERS]
)
@click.pass_context
@with_appcontext
def worker(ctx: click.Context, /, **options: Any) -> None:
    """Run the application's tasks until SIGTERM or SIGINT.

    SIGHUP stops the worker too. Running tasks may finish; a second signal, or SIGQUIT, gives them back at once.
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
    """Create or upgrade outboxq's tables and subscriptions."""
    with speaking_plainly():
        outbox = _outbox()
        outbox.load_tasks()
        click.echo(upgraded(outbox), err=True)


def _outbox() -> Outboxq:
    """Return the outbox of the current application."""
    outbox: Outboxq = current_app.extensions["outboxq"]
    return outbox
