"""The planting of schedules: each worker turns the ticks of the next minute into tasks, whosever they are."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ..errors import ConfigurationError, NotPermitted
from ..store import Store

log = logging.getLogger("outboxq.worker")

_EVERY, _SOON, _WITHOUT_RIGHTS = (5.0, 15.0), (0.0, 1.0), (60.0, 90.0)
"""Seconds between two runs; after a start that planted something; and between two tries of a role that lacks a right. Ticks are planted
a minute ahead, so none of these makes a tick late."""


@dataclass(eq=False, repr=False)
class Planting:
    """Declares the schedules of this worker's code, and plants those of all.

    It knows neither the tasks nor whose schedules they are, so the schedules of a service go on while none of its workers runs.
    Where the schema is too old, or the role lacks a right, it says so once and tries again: everything else of the worker goes on.
    """

    store: Store
    declare: Callable[[Store], object] | None
    """Declares the schedules of the code. None: it has none."""

    def __post_init__(self) -> None:
        self._wait = _EVERY
        self._is_declared = self.declare is None
        self._is_off = False
        self._stopping = False

    def begin(self, *, burst: bool) -> None:
        """Declare the schedules, and plant a first page, before the thread does; with `burst`, plant all of them.

        A thread that plants while the worker is stopped may outlive its connections, so it has nothing to do at first. Raises
        InvalidArgument for a schedule that cannot be stored.
        """
        self._wait = _EVERY
        if self._attempt(self._declare):
            pages = iter((False,))
            with suppress(Exception):  # the thread tries again
                self._attempt(lambda: self._plant_first((lambda: False) if burst else (lambda: next(pages, True))))

    def run_once(self) -> None:
        self._wait = _EVERY
        if self._attempt(self._run) and self._is_off:
            self._is_off = False
            log.warning("schedules are planted again")

    def pause(self) -> float:
        """Return the seconds until the next planting."""
        return random.uniform(*self._wait)  # noqa: S311

    def stop(self) -> None:
        """Plant no further page of schedules."""
        self._stopping = True

    def _run(self) -> None:
        self._declare()
        self.store.schedules.plant(stop=lambda: self._stopping)

    def _plant_first(self, stop: Callable[[], bool]) -> None:
        if self.store.schedules.plant(stop=stop):
            self._wait = _SOON  # there may be more

    def _declare(self) -> None:
        if not self._is_declared and self.declare is not None:
            self.declare(self.store)
            self._is_declared = True

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Return whether it was done; False where the database is not ready for schedules."""
        try:
            work()
        except ConfigurationError as error:
            if isinstance(error, NotPermitted):
                self._wait = _WITHOUT_RIGHTS
            if not self._is_off:
                log.warning("this worker plants no schedules, and works on without them: %s", error)
            self._is_off = True
            return False
        return True
