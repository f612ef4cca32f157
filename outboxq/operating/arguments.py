"""The arguments of a task that a person types, checked against the task's function where the process knows it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..errors import InvalidArgument, InvalidCall, PayloadError

if TYPE_CHECKING:
    from ..outbox import Outbox


def checked(outbox: Outbox, task_name: str, arguments: str) -> str:
    """Return arguments as they are stored for the task with this name. A task that this process does not know takes any.
    Raises InvalidArgument.
    """
    if task_name not in outbox.tasks:
        return arguments
    task = outbox.tasks.get(task_name)
    try:
        task.parameters.check_call((), json.loads(arguments))  # names what is missing or unknown
        return task.call_as_json((), task.parameters.load(arguments))
    except (InvalidCall, PayloadError) as error:
        raise InvalidArgument(str(error)) from None
