"""What a campaign is to do, and to whom."""

from __future__ import annotations

import random
from dataclasses import dataclass

from sqlalchemy import Engine

from tests import postgres
from tests.conftest import Database
from tests.faults.disk import Disk


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much of everything."""

    tasks: int
    processes: int
    kills: int
    stops: int
    outages: int
    stuck: int
    full: int
    patience: float
    """Seconds to work off what is left at the end."""
    crowd: bool = False
    """True if most workers sleep until a notification wakes them, while an old snapshot is held open throughout."""

    def blows(self, chance: random.Random) -> list[str]:
        """In a random order; but what lasts and has others go on begins once at once, beside what follows."""
        kinds = ["kill"] * self.kills + ["stop"] * self.stops + ["outage"] * self.outages
        kinds += ["stuck"] * self.stuck + ["full"] * self.full
        chance.shuffle(kinds)
        for kind in ("stop", "stuck"):
            kinds.remove(kind)
            kinds.insert(0, kind)
        return kinds


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Where it takes place: a database whose server and disk are nobody else's."""

    database: Database
    server: postgres.Cluster | None
    """None: SQLite."""
    writer: Engine
    """For the application's own transactions; does not wait long for a lock, which only this process may be able to free."""
    disk: Disk
