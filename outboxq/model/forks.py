"""What this system can do with processes: Windows has no fork."""

from __future__ import annotations

import os
from collections.abc import Callable

CAN_FORK = hasattr(os, "fork")
"""Whether processes of ours can be started with a lifeline, as `--processes` and `--reload` do."""


def in_children(call: Callable[[], object]) -> None:
    """Have `call` run in each child that this process forks, before anything else of ours does."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
