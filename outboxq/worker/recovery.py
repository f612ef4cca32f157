"""Taking back the tasks of dead workers, and only of those.

A lease that ran out proves little: its worker may be unable to reach the database, wait for a lock, or have been paused, and
the clock may have been set. So a worker takes back a lease only after it has seen it unchanged at two looks, with a write of
its own in between and enough time for a living worker's heartbeat, which is sent again every half second while it fails.
Whatever keeps this worker from its own looks or writes begins that watch anew.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from ..model import TaskStatus
from ..store import Lease, LeaseLook, Recovered, Store
from ..store.failure_log import say
from .failpoints import Failpoint, OnFailpoint
from .leases import Leases

log = logging.getLogger("outboxq.worker")

RECOVERY_BATCH = 500
_WATCH_SECONDS = 2.0
"""Seconds between the two looks, at most; after trouble it is twice the time between looks instead. With a look every five
seconds a dead worker's task is taken back within ten seconds of the end of its lease."""
_STALL = 2.0
"""Seconds by which a look may come late before this process is taken to have been paused."""
_LOCK_TIMEOUT = timedelta(seconds=1)
"""A recovery that waited longer for SQLite's one lock takes nothing back: heartbeats waited for it too."""
_BROKEN_PAUSE = 60.0
"""Seconds for which a lease that cannot be taken back is left alone."""
_CLOCK_STEP = 1.0
"""Seconds by which the database's clock must run away from ours before it is taken to have been set."""


class Recovery:
    """Takes back the leases of workers that died. Every worker runs it: no registry, no leader."""

    def __init__(
        self,
        store: Store,
        leases: Leases,
        *,
        every: timedelta,
        prove_writable: Callable[[], object],
        on_recovery: Callable[[], object],
        on_failpoint: OnFailpoint,
    ) -> None:
        """`leases` are those of this process, which it never takes back. `prove_writable` proves that the database takes writes.
        `on_recovery` is called before tasks are taken back.
        """
        self._store = store
        self._leases = leases
        self._every = every.total_seconds()
        self._prove_writable = prove_writable
        self._on_recovery = on_recovery
        self._on_failpoint = on_failpoint
        self._watched: dict[Lease, float] = {}
        """Leases that ran out, and since when they have been watched (`time.monotonic()`)."""
        self._real_ends: dict[Lease, float] = {}
        """Leases from before the clock was set back, and when they really end (`time.monotonic()`): their own times are too
        late now.
        """
        self._broken: dict[Lease, float] = {}
        """Leases that cannot be taken back, and when that is tried again (`time.monotonic()`)."""
        self._watch = min(_WATCH_SECONDS, self._every)
        self._looked_at: float | None = None
        self._pause = 0.0
        self._clock_offset: float | None = None
        """Seconds by which the database's clock is ahead of `time.monotonic()`."""

    def run_once(self) -> int:
        """Look once, and take back one bounded batch of what was watched for long enough; returns how many tasks that were."""
        self._store.check_file()
        try:
            return self._look()
        except Exception:
            self._restart_watch()
            raise

    def pause(self) -> float:
        """Return the seconds until the next look: spread out, so that workers started together do not look together."""
        self._pause = self._every * random.uniform(0.5, 1.0)  # noqa: S311
        if self._watched:
            ripe = min(self._watched.values()) + self._watch - time.monotonic()
            self._pause = min(self._pause, max(0.0, ripe))
        return self._pause

    def _look(self) -> int:
        self._on_failpoint(Failpoint.BEFORE_RECOVERY)
        began = time.monotonic()
        if self._looked_at is not None and began - self._looked_at > self._pause + _STALL:
            self._restart_watch()
        look = self._store.expired_leases()
        self._looked_at = time.monotonic()
        if (took := self._looked_at - began) > _STALL:
            self._restart_watch()
        if self._store.clock is None:
            self._check_clock(look.now, took)
        expired = [lease for lease in self._expired(look) if not self._leases.has(lease)]
        new = [lease for lease in expired if lease not in self._watched]
        if new:
            self._prove_writable()
        now = time.monotonic()
        self._watched = {lease: self._watched.get(lease, now) for lease in expired}
        ripe = [lease for lease, since in self._watched.items() if since + self._watch <= now]
        if not ripe:
            if not expired:
                self._watch = min(_WATCH_SECONDS, self._every)
            return 0
        taken = self._recover_batch(ripe[:RECOVERY_BATCH])
        self._watch = min(_WATCH_SECONDS, self._every)  # whoever lives has had the time that it needs after trouble
        self._looked_at = time.monotonic()
        return taken

    def _recover_batch(self, ripe: Sequence[Lease]) -> int:
        self._on_recovery()
        found = self._recover(ripe)
        self._on_failpoint(Failpoint.AFTER_RECOVERY)
        now, taken = time.monotonic(), {one.id for one in found}
        for lease in ripe:
            self._real_ends.pop(lease, None)
            if lease.id in taken:
                del self._watched[lease]
            else:
                self._watched[lease] = now  # it was locked or extended, or the lock of SQLite came late
        for one in found:
            level = logging.ERROR if one.status is TaskStatus.FAILED else logging.WARNING
            log.log(level, "task %s lost its worker: now %s, recovery %d", one.id, one.status, one.recovery_attempts)
        return len(found)

    def _recover(self, leases: Sequence[Lease]) -> list[Recovered]:
        """Take them back together; where the database refuses that, one by one: a row that is broken harms only itself."""
        try:
            return self._store.recover(len(leases), leases=leases, patience=_LOCK_TIMEOUT)
        except Exception as error:
            if self._store.may_pass(error) or self._store.cannot_write_now(error):
                raise
            if len(leases) == 1:
                say(
                    log, logging.ERROR, f"task {leases[0].id} cannot be taken back; run: outboxq verify --repair", error
                )
                self._broken[leases[0]] = time.monotonic() + _BROKEN_PAUSE
                return []
        return [one for lease in leases for one in self._recover([lease])]

    def _expired(self, look: LeaseLook) -> list[Lease]:
        now = time.monotonic()
        known = {lease.id for lease in look.leases}
        ended = [lease for lease, end in self._real_ends.items() if end < now and lease.id not in known]
        self._broken = {lease: until for lease, until in self._broken.items() if until > now}
        return [lease for lease in (*look.leases, *ended) if lease not in self._broken]

    def _restart_watch(self) -> None:
        """There was trouble: whoever lives may not have been able to say so."""
        self._watched.clear()
        self._watch = max(2 * self._every, min(_WATCH_SECONDS, self._every))
        self._looked_at = None

    def _check_clock(self, now: datetime, took: float) -> None:
        """Notice that the database's clock was set, and do what that calls for."""
        ahead = now.timestamp() - time.monotonic()
        by = 0.0 if self._clock_offset is None else ahead - self._clock_offset
        if abs(by) > _CLOCK_STEP + took:
            log.warning("the database's clock was set by %+.0f s; leases are extended at once", by)
            self._restart_watch()
            self._leases.beat_at_once()
            if by < 0:
                self._correct_for_clock(timedelta(seconds=-by))
        self._clock_offset = ahead

    def _correct_for_clock(self, back: timedelta) -> None:
        """Remember when leases really end that seem to last, and make due again what was due before."""
        look, moment = self._store.outlasting_leases(), time.monotonic()
        for lease in look.leases:
            if lease.lease_expires_at - look.now <= back:
                continue  # made since, for longer than its task asks for
            self._real_ends[lease] = moment + (lease.lease_expires_at - back - look.now).total_seconds()
        if moved := self._store.due_again(look.now + back):
            log.warning("%d tasks that were due before the clock was set back are due again", moved)
