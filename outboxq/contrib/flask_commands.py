"""`flask outboxq …`: the commands of `outboxq`, for the application that Flask has found.

Every Flask application builds this group, so a command is imported when it is used.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import click
from click.core import ParameterSource
from flask import current_app
from flask.cli import ScriptInfo, with_appcontext

from ..cli.framing import Frame, FramedGroup
from ..outbox import Outbox
from ..store import Store

ELSEWHERE = {
    "demo": "run: outboxq demo",
    "grants": "run: outboxq grants, with the address of the database as the owner of the tables",
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
    frame = Frame(program=program, store=_store, own=_own, elsewhere=ELSEWHERE)
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
    from .flask_worker import upgrade, worker

    return {"worker": worker, "upgrade": upgrade}


def _store() -> Store:
    _enter()
    outbox: Outbox = current_app.extensions["outboxq"]
    return outbox.store


@with_appcontext
def _enter() -> None:
    """Push the application's context, which stays until the command ends."""
