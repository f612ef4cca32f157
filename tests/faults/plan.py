"""A campaign's plan, and the environment in which it takes place."""

from __future__ import annotations

import random
from dataclasses import dataclass

from sqlalchemy import Engine

from tests import postgres
from tests.conftest import Database
from tests.faults.disk import Disk


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The number of tasks, processes and faults of each kind."""

    tasks: int
    processes: int
    kills: int
    stops: int
    outages: int
    stuck: int
    full: int
    patience: float
    """The number of seconds for the remaining tasks to end after the last fault."""
    crowd: bool = False
    """True if most workers sleep until a notification wakes them, while an old snapshot is held open throughout."""

    def blows(self, chance: random.Random) -> list[str]:
        """Return the faults in random order, but start with one "stuck" and one "stop", which last while other faults follow."""
        kinds = ["kill"] * self.kills + ["stop"] * self.stops + ["outage"] * self.outages
        kinds += ["stuck"] * self.stuck + ["full"] * self.full
        chance.shuffle(kinds)
        for kind in ("stop", "stuck"):
            kinds.remove(kind)
            kinds.insert(0, kind)
        return kinds


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The environment of a campaign: a database whose server and disk nothing else uses."""

    database: Database
    server: postgres.Cluster | None
    """The PostgreSQL server, or None for SQLite."""
    writer: Engine
    """An engine for the application's transactions. It does not wait long for locks, because only this process may be able to free them."""
    disk: Disk
