"""Tasks: what an application declares, enqueues, and runs on a schedule."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import NoReturn

# `as` makes a name public to type checkers.
from ..errors import InvalidCall
from .registry import TaskRegistry as TaskRegistry
from .task import BoundTask as BoundTask
from .task import ContextTask as ContextTask
from .task import P as P
from .task import R as R
from .task import Task as Task
from .task import ensure_found_by as ensure_found_by
from .task import takes_context as takes_context


class _Package(ModuleType):
    """This package, which raises a helpful error if it is used as a decorator."""

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise InvalidCall(
            "outboxq.task is a package; write outbox = Outbox(…), and decorate the function with @outbox.task"
        )


sys.modules[__name__].__class__ = _Package
