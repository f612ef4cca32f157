"""The form in which commands are typed beside the present one, so that a printed command can be typed as it stands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import click
from click.core import ParameterSource

from ..integration.front_end import FrontEnd
from .database import shown

_TYPED = ParameterSource.COMMANDLINE
_known: ContextVar[FrontEnd | None] = ContextVar("outboxq_front_end", default=None)


@contextmanager
def typed_as(front_end: FrontEnd) -> Iterator[None]:
    """Use this front end in the block: for a program whose command line click does not see, such as manage.py."""
    token = _known.set(front_end)
    try:
        yield
    finally:
        _known.reset(token)


def front_end(own: str) -> FrontEnd:
    """Return how the commands beside this one are typed; `own` is its name, with its group's: ``task explain``.

    They are given the same APP, URL and schema if those were typed; a URL with a password is not repeated. A worker is not
    given an APP that it finds in the environment as this command did.
    """
    if (known := _known.get()) is not None:
        return known
    ctx = click.get_current_context()
    program = ctx.command_path.removesuffix(own).strip() or "outboxq"
    typed = {name: value for name, value in ctx.params.items() if ctx.get_parameter_source(name) is _TYPED}
    options = [f"--url {shown(typed['url'])}"] if typed.get("url") else []
    if typed.get("schema"):
        options.append(f"--schema {shlex.quote(typed['schema'])}")
    finds_app = "url" not in typed and ctx.get_parameter_source("app") is ParameterSource.ENVIRONMENT
    return FrontEnd(
        program=program,
        worker=f"{program} worker" if finds_app and "app_argument" not in typed else None,
        app=typed.get("app") or typed.get("app_argument"),
        options=" ".join(options),
    )
