"""Task ids on the command line: whole, or the beginning of one, if that is unique."""

from __future__ import annotations

from typing import Any

import click

from ..errors import InvalidArgument
from ..store.finding import digits_of


class TaskId(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs, not at run time before 8.3
    """A click type: the hex digits of an id or of its beginning, for `Store.find`."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return digits_of(str(value))
        except InvalidArgument as error:
            self.fail(str(error), param, ctx)


TASK_ID = TaskId()
