"""The planting of schedules: each worker turns the ticks of the next minute into tasks, whosever they are."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ...errors import InvalidArgument
from ...store import Store

log = logging.getLogger("outboxq.worker")

_EVERY, _SOON = (5.0, 15.0), (0.0, 1.0)
"""Seconds between two runs, and after a start that planted something. Ticks are planted a minute ahead, so neither makes a tick late."""


@dataclass(eq=False, repr=False)
class Planting:
    """Declares the schedules of this worker's code, and plants those of all.

    It knows neither the tasks nor whose schedules they are, so the schedules of a service go on while none of its workers runs.
    """

    store: Store
    declare: Callable[[Store], object]
    """Declares the schedules of the code."""

    def __post_init__(self) -> None:
        self._wait = _EVERY
        self._is_declared = False
        self._refusal = ""
        self._stopping = False

    def begin(self, *, burst: bool) -> None:
        """Declare the schedules, and plant a first page, before the thread does; with `burst`, plant all of them.

        A thread that plants while the worker is stopped may outlive its connections, so it has nothing to do at first.
        """
        self._wait = _EVERY
        self._declare()
        pages = iter((False,))
        with suppress(Exception):  # the thread tries again
            self._plant_first((lambda: False) if burst else (lambda: next(pages, True)))

    def run_once(self) -> None:
        self._wait = _EVERY
        self._declare()
        self.store.schedules.plant(stop=lambda: self._stopping)

    def pause(self) -> float:
        """Return the seconds until the next planting."""
        return random.uniform(*self._wait)  # noqa: S311

    def stop(self) -> None:
        """Plant no further page of schedules."""
        self._stopping = True

    def _plant_first(self, stop: Callable[[], bool]) -> None:
        if self.store.schedules.plant(stop=stop):
            self._wait = _SOON  # there may be more

    def _declare(self) -> None:
        """Declare the schedules, unless that is done.

        A name that is stored at run time already must stop no worker: it logs this once and tries again.
        """
        if self._is_declared:
            return
        try:
            self.declare(self.store)
        except InvalidArgument as error:
            if str(error) != self._refusal:
                log.warning(
                    "the schedules of this code are not stored, and the worker works on without them: %s", error
                )
            self._refusal = str(error)
        else:
            self._is_declared = True
