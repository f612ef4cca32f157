"""Forks of this process, as far as the system can fork: Windows cannot."""

from __future__ import annotations

import os
from collections.abc import Callable

CAN_FORK = hasattr(os, "fork")
"""True if processes can be started with a lifeline, as `--processes` and `--reload` do."""
EXIT_KILLED = 75
"""The exit code of a worker process that had to end with a handler of `timeout_action="kill"` in it: start it again (EX_TEMPFAIL)."""


def in_children(call: Callable[[], object]) -> None:
    """Call `call` first in each child that this process forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
