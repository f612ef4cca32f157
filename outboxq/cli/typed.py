"""Commands as they are typed where this one was: a line that one prints of another can be typed as it stands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import click

from ..front_end import FrontEnd
from .database import is_said, shown

_known: ContextVar[FrontEnd | None] = ContextVar("outboxq_front_end", default=None)


@contextmanager
def typed_as(front_end: FrontEnd) -> Iterator[None]:
    """Have commands typed so inside: for a program whose command line click does not see, such as manage.py."""
    token = _known.set(front_end)
    try:
        yield
    finally:
        _known.reset(token)


def front_end(own: str) -> FrontEnd:
    """Return how the commands beside this one are typed; `own` is its name, with its group's: ``task explain``.

    They are given the same APP, address and schema where those were typed; an address with a password is not repeated.
    """
    if (known := _known.get()) is not None:
        return known
    ctx = click.get_current_context()
    program = ctx.command_path.removesuffix(own).strip()
    typed = [ctx.params[name] for name in ("app", "app_argument") if is_said(ctx, name)]
    options = []
    if is_said(ctx, "url"):
        options.append(f"--url {shown(ctx.params['url'])}")
    if is_said(ctx, "schema"):
        options.append(f"--schema {shlex.quote(ctx.params['schema'])}")
    return FrontEnd(program=program or "outboxq", app=next(filter(None, typed), None), options=" ".join(options))
