"""The looks at the tasks that callers wait for: what each reads, and what it tells them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol
from uuid import UUID

from ..model.batches import Place
from ..store import BatchStanding, Standing
from .wait import Wait

RECHECK, CHECKED_AT_ONCE = 0.5, 100
"""Seconds after which a look also asks whether tasks are still there, and the number of them. That reads a row of each: of a thousand
at once, it took the time of ten looks.
"""


class Reader(Protocol):
    """The part of a Store, or of a ResultReader, that reads the tables."""

    def standings(self, task_ids: Collection[UUID], *, everything: bool) -> Mapping[UUID, Standing]: ...

    def batch_standings(self, places: Collection[Place], *, everything: bool) -> Mapping[Place, BatchStanding]: ...


class Look:
    """The looks of the thread at the tasks of its callers."""

    def __init__(
        self,
        reader: Reader,
        *,
        may_pass: Callable[[BaseException], bool],
        has_changed: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`may_pass` says of an error whether a later look may succeed; any other is raised. `has_changed` says whether anything
        may have been committed since it was last called.
        """
        self.count = 0
        """The number of times that the tables were read."""
        self._reader = reader
        self._may_pass = may_pass
        self._has_changed = has_changed
        self._clock = clock
        self._checked, self._unchecked = clock(), False
        self._to_check: list[Wait] = []
        """Callers whose tasks are still to be asked for, of all those that there were when that began."""

    def again(self, waits: Collection[Wait]) -> bool:
        """Look whether the tasks have ended, if anything was committed since. Returns whether one has.

        Now and then it also asks whether those that have not ended are still there. A task that no look has found yet is asked
        for until it is committed.
        """
        if not waits or not self._may_find(waits):
            return False
        checked = self._take_to_check(waits)
        missing = [wait for wait in waits if not wait.is_found or wait in checked]
        others = [wait for wait in waits if wait.is_found and wait not in checked]
        found = self.at(missing, everything=True)
        return self.at(others, everything=False) or found

    def _take_to_check(self, waits: Collection[Wait]) -> set[Wait]:
        """Return those that may be gone and are to be asked for now: a part of all, for a row of each is read."""
        if not self._is_to_be_checked:
            return set()
        if not self._to_check:
            self._to_check, self._unchecked = list(waits), False
        part, self._to_check = self._to_check[:CHECKED_AT_ONCE], self._to_check[CHECKED_AT_ONCE:]
        self._checked = self._clock()
        return set(part)

    @property
    def _is_to_be_checked(self) -> bool:
        """Return whether it is time to ask for tasks that may be gone: something was committed since that was last asked."""
        return (self._unchecked or bool(self._to_check)) and self._clock() >= self._checked + RECHECK

    def at(self, waits: Iterable[Wait], *, everything: bool) -> bool:
        """Look at what these callers wait for. Returns whether any of it has ended; `everything`: what is missing is noticed.

        Of a task that is not enqueued yet, the batch that it follows is looked at: one statement for all of them, beside the one
        for all tasks.
        """
        waits = [wait for wait in waits if not wait.done.is_set()]  # the caller reads what was found first
        has_ended = self._at_tasks([wait for wait in waits if not wait.is_ahead], everything=everything)
        ahead = [wait for wait in waits if wait.is_ahead and not wait.done.is_set()]
        has_ended |= self._at_batches(ahead, everything=everything)
        come = [wait for wait in ahead if not wait.is_ahead]
        return self._at_tasks(come, everything=True) or has_ended

    def _at_tasks(self, waits: Iterable[Wait], *, everything: bool) -> bool:
        by_id: dict[UUID, list[Wait]] = {}
        for wait in waits:
            by_id.setdefault(wait.task_id, []).append(wait)
        if not by_id:
            return False
        self.count += 1
        try:
            found = self._reader.standings(by_id, everything=everything)
        except Exception as error:  # noqa: BLE001 - raised again unless it may pass
            self._pass_over(error, [wait for several in by_id.values() for wait in several])
            return False
        has_ended = False
        for task_id, several in by_id.items():
            standing = found.get(task_id)
            for wait in several:
                if standing is not None:
                    has_ended |= wait.take(standing)
                elif everything:
                    wait.miss()
                else:
                    wait.trouble = None
        return has_ended

    def _at_batches(self, waits: Collection[Wait], *, everything: bool) -> bool:
        if not waits:
            return False
        self.count += 1
        try:
            found = self._reader.batch_standings(
                {wait.place for wait in waits if wait.place is not None}, everything=everything
            )
        except Exception as error:  # noqa: BLE001 - a role that may not read batches may read results: only these callers get it
            for wait in waits:
                if self._may_pass(error):
                    wait.trouble = error
                else:
                    wait.fail(error)
            return False
        has_ended = False
        for wait in waits:
            standing = None if wait.place is None else found.get(wait.place)
            if standing is not None:
                has_ended |= wait.take_batch(standing) or not wait.is_ahead
            elif everything:
                wait.miss()
            else:
                wait.trouble = None
        return has_ended

    def _may_find(self, waits: Collection[Wait]) -> bool:
        """Return whether a look may find anything new. Where it cannot, tasks that were missing still are."""
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
        """Keep the error for the callers, or raise it if no later look can succeed."""
        if not self._may_pass(error):
            raise error
        for wait in waits:
            wait.trouble = error
