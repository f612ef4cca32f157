"""Tasks: what an application declares, enqueues, and runs on a schedule."""

# `as` makes a name public to type checkers.
from .registry import TaskRegistry as TaskRegistry
from .task import BoundTask as BoundTask
from .task import ContextTask as ContextTask
from .task import P as P
from .task import R as R
from .task import Task as Task
from .task import name_of as name_of
from .task import takes_context as takes_context
