"""Wait for tasks to end. One thread in the process polls on behalf of all callers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from uuid import UUID

from ..errors import BatchNotFound, TaskNotFound, WaitRefused
from ..model.batches import BatchLink, link_of
from ..store import BatchStanding, ResultReader, Standing, Store
from .task import Origin


@dataclass(eq=False, kw_only=True)
class Wait:
    """One caller that is waiting for one task or for one batch."""

    task_id: UUID
    """The id of the task, or of the batch."""
    transaction: Origin | None = None
    """The transaction in which the task was enqueued; None if it has already been committed."""
    is_own: bool = False
    """True if that transaction belongs to the waiting thread, which cannot commit the transaction while waiting."""
    standing: Standing | None = None
    """The task's standing at the last poll that found it. A final standing is not replaced."""
    link: BatchLink | None = field(init=False)
    """The batch that the task follows, or the batch itself; None if the task does not follow a batch."""
    batch: BatchStanding | None = None
    """The batch's standing at the last poll that found it."""
    is_ahead: bool = field(init=False)
    """True while the batch is polled instead of the task, which has not been enqueued yet."""
    error: BaseException | None = None
    """The error that ended the wait before the task ended."""
    trouble: Exception | None = None
    """The error in the last poll, if the poll failed for a temporary reason."""
    done: threading.Event = field(default_factory=threading.Event)
    is_new: bool = True
    """True until the first poll."""
    _was_over: bool = field(init=False)
    """True if the next poll begins after the end of the transaction."""

    def __post_init__(self) -> None:
        self._was_over = self.transaction is None or self.transaction.is_committed
        self.link = link_of(self.task_id)
        self.is_ahead = self.link is not None and self.link.number == 0

    @property
    def is_found(self) -> bool:
        """Return whether a poll has found the task, or the batch that it follows."""
        return self.standing is not None or self.batch is not None

    @property
    def is_blocked(self) -> bool:
        """Return whether the batch will never enqueue this task, or is waiting for a dead letter."""
        batch = self.batch
        if batch is None or not self.is_ahead:
            return False
        return batch.blocker is not None or (batch.link.number > 0 and batch.is_decided)

    def take(self, standing: Standing | None, *, everything: bool) -> bool:
        """Record what a poll has found, if anything, and return whether the task has ended. With `everything`, the poll
        would have found the task if it existed.
        """
        self.trouble = None
        if standing is None:
            if everything:
                self.miss()
            return False
        self.standing = standing
        if standing.has_ended:
            self.done.set()
        return standing.has_ended

    def take_batch(self, standing: BatchStanding | None, *, everything: bool) -> bool:
        """Record what a poll has found about the batch that the task follows, and return whether the wait is over or the
        task has been enqueued.
        """
        self.trouble = None
        if standing is None:
            if everything:
                self.miss()
            return False
        self.batch = standing
        if standing.has_come:
            self.is_ahead = False
        elif standing.is_beyond:
            self.fail(self.not_found(f"there is no {self.what}"))
        elif standing.is_decided:
            self.done.set()
        elif not standing.closed and standing.cancel_requested_at is None and not self._may_be_committed:
            self.fail(
                WaitRefused(
                    f"batch {standing.link.batch_id} is not closed, because its `with` block raised an error, so no task "
                    f"will follow it; cancel the batch: outboxq batch cancel {standing.link.batch_id}"
                )
            )
        return self.done.is_set() or not self.is_ahead

    @property
    def _may_be_committed(self) -> bool:
        """Return whether the transaction of the enqueue, or of the batch's `with` block, is open."""
        return self.transaction is not None and self.transaction.is_open

    def miss(self) -> None:
        """Record that a poll did not find the task. This ends the wait, unless the task may still be committed or
        follows other tasks.

        The transaction may have been committed between the poll and this call, so the task is polled once more after
        the transaction has ended.
        """
        self.trouble = None
        if self.link is not None and not self.is_ahead and not self.is_found:
            self.is_ahead = True
        elif self.is_found:
            self.fail(self.not_found(f"{self.what} was pruned while its result was being awaited"))
        elif self._may_be_committed:
            if self.is_own:
                self.fail(WaitRefused(f"{uncommitted(self.what)}; commit first, then wait for the result"))
        elif self._was_over:
            self.fail(self.absence())
        else:
            self._was_over = True

    def fail(self, error: BaseException) -> None:
        """End the wait with this error."""
        self.error = error
        self.done.set()

    @property
    def what(self) -> str:
        """The task or the batch in words."""
        return f"{'task' if self.link is None or self.link.number else 'batch'} {self.task_id}"

    def absence(self) -> TaskNotFound | BatchNotFound:
        """Return the error for a task or batch that does not exist and that no open transaction can still commit.

        The outcome of a caller's transaction is not known. Even a commit would prove nothing, because a savepoint may
        have been rolled back.
        """
        if self.transaction is None:
            return self.not_found(f"there is no {self.what}")
        if self.transaction.is_committed:
            return self.not_found(f"{self.what} no longer exists: it was committed but has since been pruned")
        return self.not_found(
            f"there is no {self.what}: it has been pruned, or the transaction that enqueued it was rolled back"
        )

    def not_found(self, text: str) -> TaskNotFound | BatchNotFound:
        """Return the error with this message for a missing task or batch."""
        return (TaskNotFound if self.link is None or self.link.number else BatchNotFound)(text)


def uncommitted(what: str) -> str:
    """Return the sentence about a task or batch that workers cannot see yet."""
    return f"{what} is not committed: the transaction that enqueued it is still open, so workers cannot see it"


RECHECK, CHECKED_AT_ONCE = 0.5, 100
"""The time in seconds after which a poll also checks whether tasks still exist, and the number of tasks to check at
once. Each check reads a row, and checking a thousand tasks at once took as long as ten polls.
"""


class Poller:
    """Polls the tasks that callers are waiting for."""

    def __init__(
        self,
        reader: Store | ResultReader,
        *,
        may_pass: Callable[[BaseException], bool],
        has_changed: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`may_pass` returns whether a later poll may succeed after an error; if not, the error is raised.
        `has_changed` returns whether anything may have been committed since it was last called.
        """
        self.count = 0
        """The number of times that the tables have been read."""
        self._reader = reader
        self._may_pass = may_pass
        self._has_changed = has_changed
        self._clock = clock
        self._checked, self._unchecked = clock(), False
        self._to_check: list[Wait] = []
        """The callers whose tasks have not been checked yet in the current round of checks."""

    def again(self, waits: Collection[Wait]) -> bool:
        """Check whether the tasks have ended, if anything has been committed since the last poll. Return whether one of
        them has ended.

        From time to time, also check whether tasks that were found earlier still exist. A task that has not been found
        yet is looked up in each poll until it is committed.
        """
        if not waits or not self._may_find(waits):
            return False
        checked = self._take_to_check(waits)
        missing = [wait for wait in waits if not wait.is_found or wait in checked]
        others = [wait for wait in waits if wait.is_found and wait not in checked]
        found = self.at(missing, everything=True)
        return self.at(others, everything=False) or found

    def _take_to_check(self, waits: Collection[Wait]) -> set[Wait]:
        """Return the callers whose tasks must now be checked for existence. Only some of the callers are returned,
        because each check reads a row.
        """
        if not self._is_to_be_checked:
            return set()
        if not self._to_check:
            self._to_check, self._unchecked = list(waits), False
        part, self._to_check = self._to_check[:CHECKED_AT_ONCE], self._to_check[CHECKED_AT_ONCE:]
        self._checked = self._clock()
        return set(part)

    @property
    def _is_to_be_checked(self) -> bool:
        """Return whether it is time to check that tasks still exist. A check is needed only if something has been
        committed since the previous check.
        """
        return (self._unchecked or bool(self._to_check)) and self._clock() >= self._checked + RECHECK

    def at(self, waits: Iterable[Wait], *, everything: bool) -> bool:
        """Poll the tasks of these callers, and return whether one of them has ended. With `everything`, the poll also
        notices missing tasks.

        For a task that has not been enqueued yet, the batch that it follows is polled. One statement polls all tasks,
        and another polls all batches.
        """
        waits = [wait for wait in waits if not wait.done.is_set()]  # a caller whose wait is over keeps its result
        has_ended = self._at_tasks([wait for wait in waits if not wait.is_ahead], everything=everything)
        ahead = [wait for wait in waits if wait.is_ahead and not wait.done.is_set()]
        has_ended |= self._at_batches(ahead, everything=everything)
        come = [wait for wait in ahead if not wait.is_ahead]
        return self._at_tasks(come, everything=True) or has_ended

    def _at_tasks(self, waits: Collection[Wait], *, everything: bool) -> bool:
        if not waits:
            return False
        self.count += 1
        try:
            found = self._reader.standings({wait.task_id: None for wait in waits}, everything=everything)
        except Exception as error:  # noqa: BLE001 - raised again unless it may pass
            self._pass_over(error, waits)
            return False
        taken = [wait.take(found.get(wait.task_id), everything=everything) for wait in waits]
        return any(taken)

    def _at_batches(self, waits: Collection[Wait], *, everything: bool) -> bool:
        if not waits:
            return False
        self.count += 1
        try:
            found = self._reader.batch_standings(
                {wait.link for wait in waits if wait.link is not None}, everything=everything
            )
        except Exception as error:  # noqa: BLE001 - a role may be allowed to read results but not batches, so only these callers get the error
            if self._may_pass(error):
                self._pass_over(error, waits)
            else:
                for wait in waits:
                    wait.fail(error)
            return False
        standings = [(wait, None if wait.link is None else found.get(wait.link)) for wait in waits]
        taken = [wait.take_batch(standing, everything=everything) for wait, standing in standings]
        return any(taken)

    def _may_find(self, waits: Collection[Wait]) -> bool:
        """Return whether a poll may find anything new. If it cannot, tasks that were missing before
        are still missing.
        """
        try:
            has_changed = self._has_changed()
        except Exception as error:  # noqa: BLE001
            self._pass_over(error, waits)
            return False
        self._unchecked |= has_changed
        if has_changed or self._is_to_be_checked or any(wait.trouble is not None for wait in waits):
            return True
        for wait in waits:
            if not wait.is_found:
                wait.miss()
        return False

    def _pass_over(self, error: Exception, waits: Iterable[Wait]) -> None:
        """Keep the error for the callers, or raise it if a later poll could not succeed either."""
        if not self._may_pass(error):
            raise error
        self._unchecked = True  # the failed poll may have been the one that checks for missing tasks
        for wait in waits:
            wait.trouble = error


FIRST_PAUSE, GROWTH, LONGEST_PAUSE = 0.005, 1.02, 0.25
"""The pauses between polls, in seconds: the first one, the factor by which each later one grows, and the longest one.

The end of a task is therefore noticed within 5 ms or, if that is longer, within a fiftieth of the time waited so far,
but always within 250 ms.
"""
SHARE, BURST = 0.035, 0.1
"""The share of a core that polls may use, and the seconds of processor time by which they may briefly exceed it
(`python -m benchmarks.awaited`).
"""
EXPLAINED_WITHIN, EXPLAINED_AT_ONCE = 0.04, 4
"""The seconds allowed for finding the reason for a timeout, and the number of reasons that are looked up at once."""
IDLE = 5.0
"""The time in seconds for which the thread keeps running without a waiting caller."""


class Backoff:
    """The pauses between polls. They grow as long as no task ends, and limit polling to a fraction of a CPU core."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step = FIRST_PAUSE
        self._credit, self._credited_at = BURST, clock()

    def quicken(self) -> None:
        """Start again with the shortest pause, because there is a new caller or a task has ended."""
        self._step = FIRST_PAUSE

    def slow_down(self) -> None:
        """Make the next pauses longer, because no task had ended at the last poll."""
        self._step = min(self._step * GROWTH, LONGEST_PAUSE)

    def spend(self, seconds: float) -> None:
        """Account for the processor time of a poll."""
        now = self._clock()
        self._credit = min(BURST, self._credit + SHARE * (now - self._credited_at)) - seconds
        self._credited_at = now

    @property
    def pause(self) -> float:
        """The time in seconds from the end of a poll to the next one."""
        return max(self._step, self.rest)

    @property
    def rest(self) -> float:
        """The time in seconds until the polls so far have used no more than their share of a core."""
        return max(0.0, -self._credit / SHARE)


class ResultWaiter:
    """Waits for tasks in one database to end. Its thread starts with the first caller, and ends when there are no more
    callers.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.polls = 0
        """The number of polls so far, for tests and benchmarks."""
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._waits: dict[Wait, None] = {}
        self._new: list[Wait] = []
        self._thread: threading.Thread | None = None
        self._never = threading.Event()
        self._explaining = threading.BoundedSemaphore(EXPLAINED_AT_ONCE)

    @property
    def is_active(self) -> bool:
        """Return whether the thread exists."""
        return self._thread is not None

    def wait(self, wait: Wait, seconds: float | None) -> None:
        """Return when the wait is over, or after `seconds`; None means no time limit."""
        try:
            with self._lock:
                self._waits[wait] = None
                self._new.append(wait)
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="outboxq-results", daemon=True)
                    thread.start()
                    self._thread = thread
            self._arrived.set()
            wait.done.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))
        finally:
            with self._lock:
                self._waits.pop(wait, None)

    def explained(self, find: Callable[[], str]) -> str | None:
        """Return the reason that `find` returns, or None if it cannot be found quickly. The caller's time is already
        up, so the caller should not wait much longer.
        """
        if not self._explaining.acquire(blocking=False):  # many calls may time out at once
            return None
        found: list[str] = []

        def explain() -> None:
            try:
                with suppress(Exception):  # the role may lack a privilege, or the task may have been pruned
                    found.append(find())
            finally:
                self._explaining.release()

        thread = threading.Thread(target=explain, name="outboxq-explain", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the process may not start another thread now
            self._explaining.release()
            return None
        thread.join(EXPLAINED_WITHIN)
        return found[0] if found else None

    def _run(self) -> None:
        try:
            with closing(ResultReader(self.store)) as reader:
                self._poll_again_and_again(reader)
        except BaseException as error:  # noqa: BLE001 - each waiting caller should get it
            with self._lock:
                self._thread = None
                waits, self._waits, self._new = self._waits, {}, []
            for wait in waits:
                wait.fail(error)

    def _poll_again_and_again(self, reader: ResultReader) -> None:
        backoff, looked = Backoff(), time.monotonic()
        poller = Poller(reader, may_pass=self.store.may_pass, has_changed=reader.has_changed)
        while self._stays():
            began = time.thread_time()
            if new := self._take_new():
                backoff.quicken()
                poller.at(new, everything=True)
            if time.monotonic() >= looked + backoff.pause:
                if poller.again(self._known()):
                    backoff.quicken()
                else:
                    backoff.slow_down()
                looked = time.monotonic()
            self.polls = poller.count
            backoff.spend(time.thread_time() - began)
            self._never.wait(backoff.rest)  # a new caller does not end this pause
            self._arrived.wait(max(0.0, looked + backoff.pause - time.monotonic()))

    def _stays(self) -> bool:
        """Return whether a caller is waiting, after allowing some time for one to arrive. If no caller is waiting, the
        thread ends.
        """
        if self._waits:
            return True
        self._arrived.clear()
        with self._lock:
            if self._waits:
                return True
        self._arrived.wait(IDLE)
        with self._lock:
            if not self._waits:
                self._thread = None
            return bool(self._waits)

    def _take_new(self) -> list[Wait]:
        self._arrived.clear()
        with self._lock:
            new, self._new = self._new, []
            for wait in new:
                wait.is_new = False
            return [wait for wait in new if wait in self._waits]

    def _known(self) -> list[Wait]:
        """Return the callers whose tasks have been polled. The result includes the callers that were polled a moment
        ago, because only one poll notices each commit.
        """
        with self._lock:
            return [wait for wait in self._waits if not wait.is_new]


class WaiterOfProcess:
    """This process's ResultWaiter for each store. A forked child gets its own waiters, because threads do not survive a
    fork.
    """

    def __init__(self) -> None:
        self._waiters: dict[tuple[int, int], ResultWaiter] = {}
        """The waiters, keyed by process and store. Parent processes' waiters are kept, because a child must not close
        its parent's connections.
        """

    def of(self, store: Store) -> ResultWaiter:
        """Return the waiter for this store, which is the same in every thread."""
        process, key = os.getpid(), (os.getpid(), id(store))
        if (found := self._waiters.get(key)) is None:
            # If several threads get here at the same time, all of them get the first waiter.
            found = self._waiters.setdefault(key, ResultWaiter(store))
            for other, waiter in list(self._waiters.items()):
                # The outbox may have been bound to another database before. An active waiter may belong to another
                # Flask application: without it, each call for the other application would start another thread.
                if other[0] == process and other != key and not waiter.is_active:
                    self._waiters.pop(other, None)
        return found
