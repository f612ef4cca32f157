"""Describe the running tasks and the threads of a process. The text contains lines of code, and no values."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Sequence

from ..model import Claim


def stacks(running: Sequence[Claim], *, in_children: bool) -> str:
    """Return the running tasks and the stacks of this process's threads, those of the handlers first. They contain
    lines of code, and no values.
    """
    frames, names = sys._current_frames(), {one.ident: one.name for one in threading.enumerate()}  # noqa: SLF001 - it is documented
    parts = [f"task {one.id} ({one.task_name}) is running\n" for one in running] or ["no task is running\n"]
    if in_children:
        parts.append("the handlers run in child processes, whose stacks SIGUSR1 prints on stderr\n")
    order = sorted(frames, key=lambda ident: (not names.get(ident, "").startswith("outboxq-handler"), ident))
    for ident in order:
        lines = "".join(traceback.format_stack(frames[ident]))
        parts.append(f"\nthread {names.get(ident, ident)}\n{lines}")
    return "".join(parts)
