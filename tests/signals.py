"""Signals of the processes that tests start: as the system sets them, whoever started the tests."""

from __future__ import annotations

import signal

INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD)
"""Those that a program goes by and may have inherited: nohup ignores SIGHUP, a script's `&` SIGINT and SIGQUIT."""


def set_for_children() -> None:
    """Have the programs that this process starts hear what this process was started to ignore, or with blocked.

    A handler takes the place of what is ignored: exec resets a handler to the default, but hands on what is ignored. The
    handler does nothing, so this process itself goes on as deaf as before: under nohup, tests outlive their terminal.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    for number in INHERITED:
        if number in blocked or signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INHERITED)
