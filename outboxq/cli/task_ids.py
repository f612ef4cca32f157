"""The id of a task as it is typed: whole, or so much of its beginning that no other task has it."""

from __future__ import annotations

from typing import Any

import click

from ..errors import InvalidArgument
from ..store.finding import digits_of


class TaskId(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs, not at run time before 8.3
    """The hex digits of an id or of its beginning, for `Store.find`."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return digits_of(str(value))
        except InvalidArgument as error:
            self.fail(str(error), param, ctx)


TASK_ID = TaskId()
