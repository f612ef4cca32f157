"""The ids of tasks on the command line."""

from __future__ import annotations

from typing import Any

import click

from ..errors import InvalidArgument


class TaskId(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs, not at run time before 8.3
    """A click type: the hex digits of an id or of its beginning, for `Store.find`."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from ..store.tasks import digits_of

        try:
            return digits_of(str(value))
        except InvalidArgument as error:
            self.fail(str(error), param, ctx)


TASK_ID = TaskId()

take_key_back = click.option(
    "--take-key-back", is_flag=True, help="Take the idempotency key back from another task that has it now."
)
