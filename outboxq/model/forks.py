"""Forks of this process, on systems that can fork. Windows cannot."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

CAN_FORK = hasattr(os, "fork")
"""True if this system can fork, as `--processes` and `--reload` require."""
EXIT_KILLED = 75
"""The exit code (EX_TEMPFAIL) of a worker process that had to end because a handler with `timeout_action="kill"` did
not stop. The process should then be started again.
"""


def in_children(call: Callable[[], object]) -> None:
    """Run `call` first in each child that this process forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


depth = 0
"""The number of forks between the first process and this one. Comparing it takes a tenth of the time that a call to
`os.getpid` takes.
"""


def end_fork(error: BaseException | None) -> NoReturn:
    """End this process as Python ends a program, but without running the exit handlers that its parent registered.

    `error` is the exception that the forked function raised.
    """
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        code = 1
        with suppress(BaseException):
            traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()
    os._exit(code & 0xFF)


def _count() -> None:
    global depth  # noqa: PLW0603 - the number belongs to the whole process
    depth += 1


in_children(_count)
