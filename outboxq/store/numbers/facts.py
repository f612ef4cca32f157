"""The facts that the rules of `health` judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ...database.dialects import Row
from ...model.relays import Relay
from ..claims.workers import TakenBack, TakenTask
from ..explain.reasons import Explanation
from ..tasks.dead_letter_groups import DeadLetterGroup
from .dead_rows import DeadRows
from .statistics import Present, Statistics


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """A worker that has fallen silent."""

    label: str
    worker_id: str
    since: datetime
    """The time at which it was last seen."""
    held: int
    """Number of running tasks whose leases it still holds."""
    taken: TakenBack
    """The tasks that other workers or people have taken back."""

    @property
    def tasks(self) -> int:
        return self.held + len(self.taken.tasks)

    @property
    def is_dealt_with(self) -> bool:
        """True if nothing is left of its tasks, and a person recovered at least one of them."""
        return not self.held and self.by_person is not None

    @property
    def by_person(self) -> TakenTask | None:
        """The task that a person recovered last."""
        return next((one for one in reversed(self.taken.tasks) if one.reason is not None), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The facts that the rules judge."""

    queues: Sequence[Statistics]
    """The queues whose problems are wanted."""
    wanted: frozenset[str] | None = None
    """The names of these queues; None means all queues."""
    seen: Present
    """It includes the rows that `overview.signals` selects."""
    dead_rows: DeadRows = field(default_factory=DeadRows)
    lost: Sequence[Lost] = ()
    storms: Sequence[Row] = ()
    """The rows of `overview.signals` about retries, each with the exception of most of the retries, or None."""
    groups: Sequence[DeadLetterGroup] = ()
    """The largest groups of the recent dead letters."""
    disks: Mapping[str, str] = field(default_factory=dict)
    """A sentence for each failure of a worker that is due to a full disk."""
    causes: Mapping[str, Explanation] = field(default_factory=dict)
    """For the heaviest late queues, the reason why the task that has been due longest is waiting."""
    relays: Sequence[Relay] = ()
    """The relays to brokers, unless only some queues are wanted."""

    @property
    def now(self) -> datetime:
        return self.seen.live.now

    def rows(self, kind: str) -> list[Row]:
        """Return the rows of `overview.signals` of this kind."""
        return self.seen.live.signs.get(kind, [])

    def is_wanted(self, queue: str) -> bool:
        return self.wanted is None or queue in self.wanted

    def age(self, moment: datetime | None) -> timedelta:
        return timedelta(0) if moment is None else max(timedelta(0), self.now - moment)
