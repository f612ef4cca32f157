"""Retention: the built-in task that deletes old tasks, and its schedule."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ..context import TaskContext
from ..errors import InvalidArgument
from ..integration.ambient import OutboxRef
from ..model import TaskOptions, duration
from ..model.options import is_span
from ..model.schedules import CatchUp, NewSchedule, Overlap
from ..retry import RetryPolicy
from .schedules import RETENTION, schedule_for
from .task import ContextTask, Task

if TYPE_CHECKING:
    from ..outbox import Outbox

PRUNE: Final = "outboxq.prune"
"""The name of the task."""
_EVERY = timedelta(hours=1)
_JITTER = timedelta(minutes=5)
_LOWEST = -100
"""Priority: everything else goes first."""


def prune(ctx: TaskContext, seconds: float) -> int:
    """Delete the tasks that ended longer ago than this, as `outboxq prune` does, and return how many.

    What a stopping worker leaves, the next one deletes: each batch is committed by itself.
    """
    outbox: Outbox = ctx.outbox  # type: ignore[assignment]
    deleted = outbox.store.prune(timedelta(seconds=seconds), stop=lambda: ctx.should_stop)
    ctx.checkpoint()
    return deleted


def prune_task(outbox: OutboxRef) -> Task[..., Any]:
    """Return the task of an outbox."""
    options = TaskOptions(priority=_LOWEST)
    return ContextTask(prune, name=PRUNE, options=options, retry=RetryPolicy.of(None), outbox=outbox)


def retention_schedule(task: Task[..., Any], retention: timedelta | float) -> NewSchedule:
    """Return the schedule by which tasks are deleted once they have ended so long ago. Raises InvalidArgument."""
    age = duration(retention, "retention")
    if not is_span(age, timedelta(seconds=1)):
        raise InvalidArgument(
            f"retention must be a timedelta of at least a second, and at most a hundred years, not {retention!r}"
        )
    return schedule_for(
        task,
        name=RETENTION,
        rule=f"every {_EVERY // timedelta(seconds=1)}",
        tz="UTC",
        args={"seconds": age.total_seconds()},
        overlap=Overlap.SKIP,
        catch_up=CatchUp.LATEST,
        catch_up_limit=1,
        grace=None,
        jitter=_JITTER,
        starts_at=None,
        ends_at=None,
    )
