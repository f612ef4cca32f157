"""Writes the schedules that the code of a worker declares, as soon as the database takes them."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass

from ..errors import InvalidArgument, NotPermitted, SchemaOutOfDate
from ..schedules import declare_schedules
from ..store import Store
from ..task import TaskRegistry

log = logging.getLogger("outboxq.worker")


@dataclass(eq=False, repr=False)
class Declarations:
    """Declares the schedules once. Where the tables, a right or a name is lacking, the worker works without, and it tries again."""

    store: Store
    tasks: TaskRegistry

    def __post_init__(self) -> None:
        self.are_written = False
        self._told: str | None = None

    def run_once(self) -> None:
        """Declare the schedules, unless that is done. A refusal is logged once, and not at all if the code declares none."""
        if self.are_written:
            return
        try:
            declare_schedules(self.store, self.tasks)
            self.are_written = True
        except (SchemaOutOfDate, NotPermitted, InvalidArgument) as error:
            if self.tasks.schedules and self._told != str(error):
                log.warning("the schedules of this code are not stored, and the worker works without: %s", error)
                self._told = str(error)
            return
        if self._told is not None:
            log.info("the schedules of this code are stored now")

    def pause(self) -> float:
        """Return the seconds until the next try: half a minute to a minute."""
        return 86_400.0 if self.are_written else 60 * random.uniform(0.5, 1.0)  # noqa: S311
