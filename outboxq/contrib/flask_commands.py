"""`flask outboxq …`: the commands of `outboxq`, for the application that Flask has found.

Every Flask application builds this group, so a command imports what it needs when it is used.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from flask import current_app
from flask.cli import ScriptInfo, with_appcontext

from ..cli.framework import Frame, FramedGroup
from ..store import Store

if TYPE_CHECKING:
    from .flask import Outboxq

ELSEWHERE = {
    "completion": "run: outboxq completion",
    "demo": "run: outboxq demo",
    "grants": "run: outboxq grants, with the address of the database as the owner of the tables",
    "web": "mount outboxq.web.application() in your site, behind its own log-in",
}
"""Commands that Flask leaves out, each with what to run instead."""


def program() -> str:
    """Return the words before a command as the user has typed them, with ``--app``: ``flask --app shop outboxq``."""
    context = click.get_current_context(silent=True)
    root = None if context is None else context.find_root()
    if root is None or root.get_parameter_source("app") is not ParameterSource.COMMANDLINE:
        return "flask outboxq"
    return shlex.join(["flask", "--app", str(root.ensure_object(ScriptInfo).app_import_path), "outboxq"])


def commands() -> FramedGroup:
    """Return the group: the commands of `outboxq`, but with Flask's own `worker` and `upgrade`, in the application's context."""
    frame = Frame(program=program, store=_store, outbox=_outbox_with_tasks, own=_own, elsewhere=ELSEWHERE)
    return FramedGroup(
        _source,
        frame,
        name="outboxq",
        help="Run and inspect the tasks of the transactional outbox.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _source() -> click.Group:
    from ..cli import main

    return main


def _own() -> Mapping[str, click.Command]:
    """Return the two commands that differ from those of `outboxq`."""
    from ..cli.groups import DATABASE_PARAMETERS
    from ..cli.serving.worker import EPILOG, Rerunnable, worker

    parameters = [one for one in worker.params if one.name not in DATABASE_PARAMETERS]
    return {
        "worker": click.command("worker", cls=Rerunnable, epilog=EPILOG, params=parameters)(_worker),
        "upgrade": click.command("upgrade")(_upgrade),
    }


@click.pass_context
@with_appcontext
def _worker(ctx: click.Context, /, **options: Any) -> None:
    """Run the application's tasks until SIGTERM or SIGINT.

    SIGHUP stops the worker too. Running tasks may finish; a second signal, or SIGQUIT, gives them back at once.
    """
    from ..cli.console import EXIT_USAGE, fail
    from ..cli.serving.worker import serve

    written = list(ctx.obj)

    def again(lifeline: int) -> list[str]:
        return [sys.executable, *sys.orig_argv[1:], "--lifeline", str(lifeline)]

    if (options["processes"] > 1 or options["reload"]) and sys.orig_argv[-len(written) :] != written:
        fail("--processes and --reload start the flask command again, and this process is none", EXIT_USAGE)
    serve(_outbox, again, **options)


@with_appcontext
def _upgrade() -> None:
    """Create or upgrade outboxq's tables and subscriptions."""
    from ..cli.console import command_on_database
    from ..cli.db import upgraded

    with command_on_database():
        outbox = _outbox()
        outbox.load_tasks()
        click.echo(upgraded(outbox), err=True)


def _store() -> Store:
    _enter()
    return _outbox().store


@with_appcontext
def _enter() -> None:
    """Push the application's context, which stays until the command ends."""


def _outbox_with_tasks() -> Outboxq:
    outbox = _outbox()
    outbox.load_tasks()
    return outbox


def _outbox() -> Outboxq:
    outbox: Outboxq = current_app.extensions["outboxq"]
    return outbox
