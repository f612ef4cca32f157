"""Describe the running tasks and the threads of a process and its children. The text contains lines of code, but no
values.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Mapping, Sequence

from ..model import Claim


def describe(running: Sequence[Claim], children: Mapping[int, tuple[Claim, str | None]]) -> str:
    """Return the running tasks, the stacks of the child processes that run them, and the stacks of this process's
    threads, handler threads first.

    `children` contains the task and the stacks of each child process, keyed by process id. None means that the child
    did not answer.
    """
    parts = [f"{_named(one)} is running\n" for one in running] or ["no task is running\n"]
    for child, (claim, found) in children.items():
        parts.append(f"\nprocess {child}: {_named(claim)} is running in this child process\n{found or _NO_ANSWER}")
    return "".join([*parts, of_threads("outboxq-handler")])


def of_threads(first: str) -> str:
    """Return the stacks of this process's threads. Threads whose names begin with `first` come first."""
    frames, names = sys._current_frames(), {one.ident: one.name for one in threading.enumerate()}  # noqa: SLF001 - it is documented
    order = sorted(frames, key=lambda ident: (not names.get(ident, "").startswith(first), ident))
    return "".join(
        f"\nthread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frames[ident]))}" for ident in order
    )


_NO_ANSWER = (
    "it has not answered: its handler has not started yet, has just ended, or is running C code that holds Python's lock (even "
    "then, SIGUSR1 to the worker prints the stacks of its child processes to stderr)\n"
)


def _named(claim: Claim) -> str:
    return f"task {claim.id} ({claim.task_name})"
