"""A distributor that waits for notifications: a listening thread, and the protocol by which only sleeping workers are
notified.

`store/claims/sleeping_workers.py` proves that this protocol loses no notifications.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from ...database.dialects.channel import ANSWERED, AT, RELAYED
from ...store.claims.sleeping_workers import Place
from ..timeouts import run_with_timeout
from .base import POLL, POLL_BESIDE_NOTIFICATIONS, DistributorSettings, Health, Wakeup

_BUSY_RATE = 50.0
"""Successful claims per second. Above this rate, polling costs less than a notification for each task."""
_RATE_WINDOW = 0.1
_BUSY_POLL = 0.005
_FIRST_PAUSE, _LONGEST_PAUSE, _SLOW_PAUSE, _SLOW_AFTER = 0.001, 0.05, 1.0, 10.0
_REST = 20
"""The duration of the pause after an unsuccessful search, as a multiple of the search's duration."""
_LONGEST_JITTER = 0.02
_RECENT, _MAX_DOUBLINGS = 1.0, 10
_FORGET_TIMEOUT = 0.5
_DEPUTY_AFTER, _EVERYBODY_AFTER = 0.1, 1.0
"""The seconds after which the deputies of a call, and then all other sleepers, search for tasks if no worker has
answered the call.
"""
_ANSWER_AFTER = 0.5
"""Seconds after which a worker that finds nothing due answers a call on behalf of the others."""
_APART = 0.01
"""Seconds between two sleepers' searches for a delayed task."""
_LATEST = 1.0
"""The maximum number of seconds over which sleepers spread their searches after a call or for a delayed task."""


@dataclass(eq=False, repr=False)
class PostgresDistributor(DistributorSettings):
    """A distributor for PostgreSQL, which wakes when a task is committed, when the next task is due, or when the
    polling interval is over.
    """

    def __post_init__(self) -> None:
        from .listener import Listener  # imported here because it imports psycopg

        self._sleeping = self.store.sleeping_workers
        self._poll = (self.poll or (POLL_BESIDE_NOTIFICATIONS if self.notifications else POLL)).total_seconds()
        self._poll_without_listener = min(self._poll, POLL.total_seconds())
        self._wakeup = Wakeup()
        self._listener = Listener.of(
            self.store,
            self.listen_url,
            on_notify=self._on_notify,
            on_change=self._wakeup.notify,
            on_break=self.on_break,
        )
        self._sleeping.compile(self.queues)
        self._closed = False
        self._announced_connection = 0
        """The number of the listener's connection at the time of the worker's last announcement that it is about to
        sleep.
        """
        self._announced_until = -math.inf
        self._written = False
        self._horizon = 0
        self._calls, self._looked_for = Calls(), Calls()
        """The calls received since the last search began, and the calls received before that search."""
        self._named_for: set[str] = set()
        """The queues of the calls that have named this worker since it last passed a call on."""
        self._look_at = math.inf
        """The time at which a sleeping worker searches without a notification (`time.monotonic()`): as a deputy, or for
        a delayed task. The listener's thread may also bring this time forward.
        """
        self._bringing_forward = threading.Lock()
        self._server_clock = time.time() - time.monotonic()
        """The server's clock minus `time.monotonic()`. Until the first search, this machine's clock is used instead of
        the server's.
        """
        self._place = Place()
        self._empty_returns, self._returned_at = 0, -math.inf
        """The number of times that `wait_for_work` has returned, in quick succession, since a claim last found a task.
        """
        self._notified = False
        self._empty_notifications, self._notified_at = 0, -math.inf
        """The number of these returns that followed a notification."""
        self._traffic, self._traffic_at = 0.0, 0.0

    @property
    def health(self) -> Health:
        return self._listener.health if self.notifications else Health(listening=False, error="notifications are off")

    @property
    def means(self) -> str:
        seconds = f"every {self._poll:g} s"
        return f"listens for new tasks, and polls {seconds}" if self.notifications else f"polls {seconds}"

    def start(self) -> None:
        if self.notifications and not self._closed and self._listener.ident is None:
            self._listener.start()

    def wait_for_work(self, timeout: float | None = None) -> None:
        end = math.inf if timeout is None else time.monotonic() + timeout
        if not self._wakeup.wait(0):
            awaited = False
            while (seconds := self._seconds_to_sleep(end, awaited=awaited)) > 0:
                if self._sleep(min(seconds, end - time.monotonic())):
                    break
                awaited = True
        self._spread_out()

    def at_work(self, *, full: bool = False, saturated: bool = False) -> None:
        self._empty_returns = self._empty_notifications = 0
        self._traffic, self._traffic_at = self._rate() * _RATE_WINDOW + (not saturated), time.monotonic()
        if self._named_for and (full or saturated):
            self._pass_on()
        if saturated or self._rate() > _BUSY_RATE:
            self._withdraw()

    def wake(self) -> None:
        self._wakeup.notify()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wakeup.close()
        self._listener.close()
        if self._written:
            run_with_timeout(_FORGET_TIMEOUT, self._forget)

    def _forget(self) -> None:
        with suppress(Exception):  # the worker's row expires anyway
            self._sleeping.forget(self.worker_id)

    def _seconds_to_sleep(self, end: float, *, awaited: bool) -> float:
        if not self._listener.health.listening:
            self._begin_look()
            return self._until_due(self._poll_without_listener)
        if self._rate() > _BUSY_RATE:
            self._begin_look()  # the claim after the pause is a search
            self._withdraw()
            return _BUSY_POLL
        return self._prepare_sleep(end, awaited=awaited)

    def _begin_look(self) -> None:
        """Forget the reasons to search, because the next search answers each notification that arrived before it."""
        self._look_at = math.inf
        self._looked_for, self._calls = self._calls, Calls()

    def _sleep(self, seconds: float) -> bool:
        """Sleep until a notification arrives, but for at most this many seconds. Returns False early if it is time to
        search.
        """
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            look_at = self._next_look()
            if now >= look_at:
                return False
            if self._wakeup.wait(min(end, look_at) - now):
                break
        return True

    def _next_look(self) -> float:
        return min(self._look_at, self._calls.look_at)

    def _prepare_sleep(self, end: float, *, awaited: bool) -> float:
        """Announce that the worker is about to sleep. Returns the number of seconds for which sleeping is safe; 0 means
        that the worker must claim now. If `awaited` is True, the worker expected a task to be due now, so it claims
        whatever is due.
        """
        self._announce()
        pause, began = _FIRST_PAUSE, time.monotonic()
        while True:
            self._begin_look()
            seen = self._sleeping.look(self._horizon, self.queues, self.topics, self.floors)
            now = time.monotonic()
            self._server_clock = seen.now - now
            moment = None if seen.seconds is None else seen.now + seen.seconds
            if moment is not None:  # not `_look_by`, because its nudge would end the pause below
                self._bring_forward(self._turn_at(moment))
            # Sleep at most until the row expires, because after that, this worker is not notified.
            longest = self._announced_until - now
            if seen.due:
                return 0 if awaited else min(self._pause_after_empty_claims(settled=seen.settled), longest)
            if seen.complete:
                self._answer(self._looked_for.last(heard_before=now - _ANSWER_AFTER), moment)
            if seen.settled:
                return longest
            if self._wakeup.wait(min(pause, longest, end - now, self._next_look() - now)) or now >= min(
                end, self._announced_until
            ):
                return 0
            waited = now - began
            pause = min(2 * pause, _LONGEST_PAUSE if waited < _SLOW_AFTER else _SLOW_PAUSE)

    def _answer(self, calls: Mapping[str, int], moment: float | None) -> None:
        if calls:
            with suppress(Exception):  # the other workers search for tasks themselves
                self._sleeping.answer(calls, moment)

    def _announce(self) -> None:
        """Ask to be notified, unless an earlier announcement is still valid."""
        connections = self._listener.connections
        if self._announced_connection == connections and time.monotonic() < self._announced_until:
            return
        self._announced_until, self._written = -math.inf, True
        sent = time.monotonic()
        session = self._listener.session if self.topics is None else None
        longest = timedelta(seconds=self._poll)
        self._place = self._sleeping.announce(self.worker_id, self.queues, longest, session=session)
        self._horizon = self._sleeping.horizon()
        self._announced_until = sent + self._poll
        self._announced_connection = connections

    def _withdraw(self) -> None:
        if self._announced_until > time.monotonic():
            self._announced_until = -math.inf
            with suppress(Exception):  # the worker's row expires; until then, the worker gets needless notifications
                self._sleeping.withdraw(self.worker_id)

    def _pass_on(self) -> None:
        """Call other workers for the tasks that this worker was called for but cannot take now."""
        queues = []
        while self._named_for:
            queues.append(self._named_for.pop())
        with suppress(Exception):  # the other sleeping workers search for the tasks
            if self._sleeping.look(self._horizon, self.queues, self.topics, self.floors).due:
                self._announced_until = -math.inf
                self._sleeping.pass_on(self.worker_id, queues)

    def _until_due(self, longest: float) -> float:
        ahead = self.store.look_ahead(self.queues, topics=self.topics)
        if ahead.seconds is not None:
            longest = min(longest, ahead.seconds)
        return min(self._pause_after_empty_claims(), longest) if ahead.due else longest

    def _pause_after_empty_claims(self, *, settled: bool = True) -> float:
        """Return the number of seconds to pause after a claim that found no due task.

        Either another worker has the task, or blocked keys hide whether other tasks can be claimed. A search behind
        many keys takes a long time, and delays a notification that arrives in the meantime. Therefore, once all
        producers notify (`settled`), the pause after a long search is longer.
        """
        if not self._empty_returns:
            return 0
        pause: float = _FIRST_PAUSE * 2**self._empty_returns
        if settled:
            pause = max(pause, (time.monotonic() - self._returned_at) * _REST)
        return min(pause, _SLOW_PAUSE)

    def _rate(self) -> float:
        """Return the recent number of successful claims per second."""
        return self._traffic * math.exp((self._traffic_at - time.monotonic()) / _RATE_WINDOW) / _RATE_WINDOW

    def _spread_out(self) -> None:
        """After needless notifications, let other workers search first, since one task wakes all idle workers.

        If no notification asked for a search past blocked keys, that search does not count as a needless
        notification.
        """
        now = time.monotonic()
        self._empty_returns = min(self._empty_returns + 1, _MAX_DOUBLINGS) if now - self._returned_at < _RECENT else 0
        notified, self._notified = self._notified, False
        if notified:
            soon = now - self._notified_at < _RECENT
            self._empty_notifications = min(self._empty_notifications + 1, _MAX_DOUBLINGS) if soon else 0
            if self._empty_notifications > 1 and not self._closed:
                longest = min(_LONGEST_JITTER, _FIRST_PAUSE * 2**self._empty_notifications)
                self.store.gone.wait(random.uniform(0, longest))  # noqa: S311
            self._notified_at = time.monotonic()
        self._returned_at = time.monotonic()

    def _on_notify(self, payload: str) -> None:
        """Do what a notification asks of this worker: claim, or search later (see `outboxq_notify()` in the migration)."""
        head, _, queue = payload.partition(" ")
        if head == RELAYED or (self.queues is not None and queue not in self.queues):
            return
        try:
            self._obey(head, queue)
        except (
            ValueError,
            TypeError,
            OverflowError,
        ):  # any role may notify, and what it sends must not end the listener
            self._wakeup.notify()

    def _obey(self, head: str, queue: str) -> None:
        if head.startswith(ANSWERED):
            number, _, moment = head[1:].partition(AT)
            if moment:  # done before the calls are forgotten
                self._look_when_due(float(moment))
            for calls in (self._looked_for, self._calls):
                calls.answered(queue, int(number))
        elif head.startswith(AT):
            self._look_when_due(float(head[1:]))
        elif self.topics is None and head[:1].isdigit():
            self._hear(queue, *map(int, head.split(",")))
        else:
            self._notified = True
            self._wakeup.notify()

    def _hear(self, queue: str, tasks: int, number: int, *sessions: int) -> None:
        """Record a call. The call is for the workers with the first `tasks` sessions. The other sessions belong to
        these workers' deputies.
        """
        now, calls = time.monotonic(), self._calls
        before = calls.look_at
        look_at = now + _EVERYBODY_AFTER + self._place.share(number) * _LATEST
        calls.heard(Call(queue=queue, number=number, heard_at=now, look_at=look_at))
        if self._listener.session in sessions:
            self._named_for.add(queue)
            if self._listener.session in sessions[:tasks]:
                self._wakeup.notify()
            else:
                self._look_by(now + _DEPUTY_AFTER)
        elif calls.look_at < before:
            self._wakeup.nudge()

    def _look_when_due(self, due: float) -> None:
        self._look_by(self._turn_at(due))

    def _turn_at(self, due: float) -> float:
        later = min(self._place.turn(int(due * 1000)) * _APART, _LATEST)
        return due - self._server_clock + later

    def _look_by(self, moment: float) -> None:
        if self._bring_forward(moment):
            self._wakeup.nudge()

    def _bring_forward(self, moment: float) -> bool:
        """Search no later than this time. Returns False if a search is due earlier anyway."""
        with self._bringing_forward:
            if moment >= self._look_at:
                return False
            self._look_at = moment
            return True


_MOST = 256
"""The maximum number of calls to keep. Further calls are answered only by the worker's own search."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A notification that names workers."""

    queue: str
    number: int
    heard_at: float
    look_at: float
    """The time at which the worker searches, if no worker has answered the call by then."""


class Calls:
    """The calls received between two searches by the worker, except those that another worker has answered.

    The calls are in commit order, which is the same for all workers. The listener's thread changes them. The worker's
    thread reads them, and clears them when it searches for tasks.
    """

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self.look_at = math.inf
        """The time at which the worker searches for tasks."""

    def heard(self, call: Call) -> None:
        if len(self._calls) < _MOST:
            self._calls.append(call)
            self.look_at = min(self.look_at, call.look_at)

    def answered(self, queue: str, number: int) -> None:
        """Forget the calls for this queue up to the call with this number, because another worker found nothing due
        after receiving these calls.
        """
        places = [place for place, call in enumerate(self._calls) if (call.queue, call.number) == (queue, number)]
        if places and len(self._calls) < _MOST:
            last = places[-1]
            self._calls = [call for place, call in enumerate(self._calls) if place > last or call.queue != queue]
            self.look_at = min((call.look_at for call in self._calls), default=math.inf)

    def last(self, *, heard_before: float) -> dict[str, int]:
        """Return the number of the last call for each queue, leaving out queues whose calls were all received after
        this time.
        """
        calls = self._calls
        queues = {call.queue for call in calls if call.heard_at < heard_before}
        return {call.queue: call.number for call in calls if call.queue in queues}
