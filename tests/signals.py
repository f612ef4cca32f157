"""Default signal handling for the processes that tests start, regardless of how the tests were started."""

from __future__ import annotations

import signal

INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD)
"""Signals that a program handles and that it may have inherited as ignored.

nohup ignores SIGHUP. `&` in a script ignores SIGINT and SIGQUIT.
"""


def set_for_children() -> None:
    """Let the programs that this process starts receive the signals that this process ignores or blocks.

    This process gets a handler for each ignored signal, because exec resets a handler to the default but keeps an ignored signal
    ignored. The handler does nothing, so this process still ignores the signal: under nohup, tests outlive their terminal.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    for number in INHERITED:
        if number in blocked or signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INHERITED)
