"""The senders of relays to brokers, and a runner that runs them without a worker. Each relay has one thread, and one
more thread extends all leases.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from uuid import UUID, uuid4

from ...database.engine import close
from ...database.privileges import Role
from ...errors import ConfigurationError, RelayNotFound
from ...model.relays import Relay, count_of
from ...model.wording import plural
from ...store import Store
from ...task import TaskRegistry
from ...task.registry import BrokerRelay
from ...task.relays import sync
from ..distributor.base import Wakeup
from ..signals import handle_stop_signals, in_main_thread
from ..timeouts import join
from ..upkeep import ServiceThread
from .sender import Sender
from .waiting import FileWaiting, NotifiedWaiting, Waiting

log = logging.getLogger("outboxq.relay")

_HEARTBEAT = 3.0
"""Seconds between two extensions of the leases: a third of a lease's duration."""


class Senders:
    """Sends the messages of some relays, and shares the relays' shards with the senders in other processes."""

    def __init__(
        self,
        store: Store,
        relays: Collection[BrokerRelay],
        *,
        worker_id: UUID | None = None,
        notifications: bool = True,
        listen_url: str | None = None,
        on_thread_failure: Callable[[BaseException], None],
        burst: bool = False,
    ) -> None:
        """Prepare the senders. With `burst`, each sender ends when it finds nothing to publish."""
        self._gone = threading.Event()
        self._stopping = threading.Event()
        self.id = worker_id or uuid4()
        self._store = store.reserved(self._gone)
        names = [one.declared.name for one in relays]
        self._waiting: Waiting = (
            FileWaiting(self._store, names, notifications=notifications, commits_of=store.engine)
            if store.dialect.one_writer
            else NotifiedWaiting(self._store, names, notifications=notifications, listen_url=listen_url)
        )
        self.senders = [
            Sender(
                self._store,
                one,
                self._waiting,
                worker_id=self.id,
                stopping=self._stopping,
                on_thread_failure=on_thread_failure,
                burst=burst,
            )
            for one in relays
        ]
        self._heartbeat = ServiceThread("relay-heartbeat", self, on_thread_failure)
        self._has_begun = False

    def start(self) -> None:
        self._has_begun = True
        self._waiting.start()
        self._heartbeat.start()
        for one in self.senders:
            one.start()

    def run_once(self) -> None:
        """Extend the leases, except those of senders that are waiting for an overdue transport."""
        overdue = [lock for one in self.senders for lock in one.overdue()]
        leases = [lease for one in self.senders for lease in one.live_leases(overdue)]
        if leases:
            self._store.relays.renew(self.id, leases)

    def pause(self) -> float:
        return _HEARTBEAT

    @property
    def have_ended(self) -> bool:
        """True if all senders have ended, as they do at the end of a burst."""
        return not any(one.is_alive() for one in self.senders)

    def request_stop(self) -> None:
        """Make the senders end after the batch that they are publishing."""
        self._stopping.set()
        self._waiting.close()

    def stop(self, timeout: timedelta) -> bool:
        """Stop the senders, and return whether all of them ended in time."""
        self.request_stop()
        if self._has_begun:
            end = time.monotonic() + timeout.total_seconds()
            for one in self.senders:
                join(one, max(0.0, end - time.monotonic()))
            self._heartbeat.stop()
            join(self._heartbeat, 1.0)
        self._gone.set()
        close(self._store.bound_engine)
        return self.have_ended


class RelayRunner:
    """Publishes the events of the relays that an application declares, until it is told to stop."""

    def __init__(
        self,
        store: Store,
        tasks: TaskRegistry,
        names: Sequence[str] = (),
        *,
        notifications: bool = True,
        listen_url: str | None = None,
        drain_timeout: timedelta = timedelta(seconds=25),
        burst: bool = False,
    ) -> None:
        """Prepare to run the relays with these names, or all relays if there are no names.

        Raises ConfigurationError if the application declares no relay to a broker, and RelayNotFound for an unknown name.
        """
        known = tasks.relays
        if not known:
            raise ConfigurationError(
                "this application declares no relay to a broker; declare one with outbox.relay(topics, to=…, name=…)"
            )
        if unknown := [name for name in names if name not in known]:
            raise RelayNotFound(
                f"there is no relay {unknown[0]!r}; this application declares: {', '.join(sorted(known))}"
            )
        self._store, self._tasks, self._drain_timeout, self._burst = store, tasks, drain_timeout, burst
        self._relays = [known[name] for name in names or known]
        self._error: BaseException | None = None
        self._over = Wakeup()  # a signal handler notifies it
        self._senders = Senders(
            store,
            self._relays,
            notifications=notifications,
            listen_url=listen_url,
            on_thread_failure=self._fail,
            burst=burst,
        )

    def run(self) -> int:
        """Publish until SIGTERM, SIGINT or SIGHUP, and finish the batches that are being published. With `burst`, stop
        when every relay has nothing left to publish, is paused, or is failing. Without `burst`, raises
        ConfigurationError outside the main thread, because only the main thread receives signals.

        Returns the exit code: 0 after a clean stop; 1 if a batch was not finished in time, if a thread died, or
        if a broker failed during a burst and events are left.
        """
        if not self._burst and not in_main_thread():
            raise ConfigurationError(
                "`outboxq relay run` is stopped by signals, which only the main thread receives; run it in the main thread of a separate "
                "process, or with --burst"
            )
        prepare_database(self._store, self._tasks)
        with handle_stop_signals(stop=self._over.notify, abandon=lambda: os._exit(1)):
            self._senders.start()
            names = ", ".join(one.declared.name for one in self._relays)
            log.info("publishing the events of %s %s", plural(len(self._relays), "relay"), names)
            while not self._over.wait(0.1):
                if self._burst and self._senders.have_ended:
                    break
            clean = self._senders.stop(self._drain_timeout)
        is_left = self._burst and self._error is None and self._tell_result()
        return 0 if clean and self._error is None and not is_left else 1

    def _tell_result(self) -> bool:
        """Log how many events of each relay were published, how many are left, and why they are left. Return whether
        events are left because a broker failed.
        """
        stored = {one.name: one for one in self._store.relays.list()}
        failed = False
        for one in self._senders.senders:
            name, done = one.name_of_relay, f"published {one.published} {plural(one.published, 'event')}"
            done += f", and {one.refused} {plural(one.refused, 'was', 'were')} refused" if one.refused else ""
            found = stored.get(name)
            if found is None or not found.messages:
                log.info("relay %s: %s; nothing is left", name, done)
                continue
            is_failing = found.failing_since is not None and found.paused_at is None
            failed = failed or is_failing
            level = logging.ERROR if is_failing else logging.WARNING
            left = f"{count_of(found.messages)} {plural(found.messages, 'is', 'are')} left"
            log.log(level, "relay %s: %s; %s, because %s", name, done, left, _why_left(found))
        return failed

    def _fail(self, error: BaseException) -> None:
        log.critical("a sender died; stopping", exc_info=error)
        self._error = error
        self._over.notify()


def prepare_database(store: Store, tasks: TaskRegistry) -> None:
    """Check that a worker or a sender can use the database, and store the subscriptions and relays in the code."""
    store.ensure_file()
    store.rights.ensure(Role.WORKER)
    store.ensure_current()
    store.ensure_primary()
    sync(store, tasks)


def _why_left(relay: Relay) -> str:
    """Return the reason why events are left after a burst."""
    if relay.paused_at is not None:
        return f"the relay is paused{f': {relay.pause_reason}' if relay.pause_reason else ''}"
    if relay.failing_since is not None:
        return f"the broker does not confirm them: {relay.last_error}"
    return f"another process publishes them, or refused events hold their keys; to see which, run `relay show {relay.name}`"
