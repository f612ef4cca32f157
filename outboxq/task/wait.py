"""A caller that waits for a task or a batch, and what it has learned so far."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from ..errors import BatchNotFound, TaskNotFound, WaitRefused
from ..model.batches import Place, place_of
from ..store import BatchStanding, Standing


class Openness(Protocol):
    """The transaction in which a task was enqueued."""

    @property
    def is_open(self) -> bool: ...

    @property
    def is_committed(self) -> bool: ...


@dataclass(eq=False, kw_only=True)
class Wait:
    """One caller that waits for one task, or for a batch."""

    task_id: UUID
    """The id of the task, or of the batch."""
    transaction: Openness | None = None
    """The transaction that the task was enqueued in; None: it is committed already."""
    is_own: bool = False
    """True if that transaction is of the thread that waits, which cannot end it meanwhile."""
    standing: Standing | None = None
    """The standing of the task at the last look that told it; its end once that is seen."""
    place: Place | None = field(init=False)
    """The place of the task behind its batch, or the batch itself; None: the task follows no others."""
    batch: BatchStanding | None = None
    """The standing of that batch at the last look that told it."""
    is_ahead: bool = field(init=False)
    """True while the batch is looked at, and not the task: that is not enqueued yet."""
    error: BaseException | None = None
    """The reason why the wait is over without an end."""
    trouble: Exception | None = None
    """The error of the last look, if it failed for a reason that may pass."""
    done: threading.Event = field(default_factory=threading.Event)
    is_new: bool = True
    """True until the first look."""
    _was_over: bool = False

    def __post_init__(self) -> None:
        self.place = place_of(self.task_id)
        self.is_ahead = self.place is not None and self.place.number == 0

    @property
    def is_found(self) -> bool:
        """Return whether a look has found the task, or the batch that it follows."""
        return self.standing is not None or self.batch is not None

    @property
    def is_blocked(self) -> bool:
        """Return whether the batch goes on to this task no more, or waits for a dead letter."""
        batch = self.batch
        if batch is None or not self.is_ahead:
            return False
        return batch.blocker is not None or (batch.place.number > 0 and batch.is_decided)

    def take(self, standing: Standing) -> bool:
        """Take over what a look has found. Returns whether the task has ended."""
        self.standing, self.trouble = standing, None
        if standing.has_ended:
            self.done.set()
        return standing.has_ended

    def take_batch(self, standing: BatchStanding) -> bool:
        """Take over what a look has found of the batch that the task follows. Returns whether the wait is over."""
        self.batch, self.trouble = standing, None
        if standing.has_come:
            self.is_ahead = False
        elif standing.is_beyond:
            self.fail(self.not_found(f"there is no {self.what}"))
        elif standing.is_decided:
            self.done.set()
        elif not standing.closed and standing.cancel_requested_at is None and not self._may_close():
            self.fail(
                WaitRefused(
                    f"batch {standing.place.batch_id} is not closed, since an error has left its `with` block: it is never followed; "
                    f"end it: outboxq batch cancel {standing.place.batch_id}"
                )
            )
        return self.done.is_set()

    def _may_close(self) -> bool:
        """Return whether the `with` block of the batch may still close it: its transaction is open, and sees its own rows."""
        return self.transaction is not None and self.transaction.is_open

    def miss(self) -> None:
        """Take over that a look did not find the task. Ends the wait unless the task may still be committed, or follows others.

        A commit may have come between the look and this call, so after the end of the transaction there is one more look.
        """
        self.trouble = None
        if self.place is not None and not self.is_ahead and not self.is_found:
            self.is_ahead = True
        elif self.is_found:
            self.fail(self.not_found(f"{self.what} was pruned while its result was waited for"))
        elif self.transaction is None or self.transaction.is_committed:
            self.fail(self.absence())
        elif self.transaction.is_open:
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
        return f"{'task' if self.place is None or self.place.number else 'batch'} {self.task_id}"

    def absence(self) -> TaskNotFound | BatchNotFound:
        """Return the error for what is not there and what no open transaction can still commit.

        How a caller's transaction ended is not known. It would not tell either, since a savepoint in it may have been rolled back.
        """
        if self.transaction is None:
            return self.not_found(f"there is no {self.what}")
        if self.transaction.is_committed:
            return self.not_found(f"there is no {self.what} any more: it was committed, and was pruned since")
        return self.not_found(
            f"there is no {self.what}: the transaction that enqueued it was rolled back, or it was pruned since"
        )

    def not_found(self, text: str) -> TaskNotFound | BatchNotFound:
        """Return the error that says so of what is not there."""
        return (TaskNotFound if self.place is None or self.place.number else BatchNotFound)(text)


def uncommitted(what: str) -> str:
    """Return the sentence about a task or a batch that no worker can see yet."""
    return f"{what} is not committed: the transaction that enqueued it is still open, so no worker can see it"
