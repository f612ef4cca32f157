"""Commands that go on until they are told to stop: `log --follow`, `status --watch`."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Stop:
    """The wish of the command's user that it ends. A command looks at it between two pieces of work."""

    def __init__(self) -> None:
        self.is_wanted = False
        self._waits = False

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until a signal comes; returns whether the command should end."""
        with suppress(_Woken):
            self._waits = True
            if not self.is_wanted:
                time.sleep(seconds)
        self._waits = False
        return self.is_wanted

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal. A further one ends the command wherever it is."""
        if self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True
        if self._waits:
            raise _Woken


class _Woken(BaseException):
    """Raised by the first signal while the command waits."""


@contextmanager
def until_stopped() -> Iterator[Stop]:
    """Have Ctrl-C and SIGTERM end the block when it next looks at the `Stop`. Such an end is no error.

    The signal raises nothing inside a transaction: an exception in the midst of a statement would leave its connection unusable,
    and look like an outage after which the statement is run again.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield stop
        return
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with suppress(KeyboardInterrupt, _Woken):
            yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
