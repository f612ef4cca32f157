"""The progress that running tasks have reported."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from ..database.dialects import Begin
from ..database.statements import progress as statements
from ..database.target import Target
from ..model.running import Progress
from .arguments import identifier
from .transactions import Transactions


def progress(store: Transactions, task_ids: Iterable[UUID], *, using: object = None) -> Mapping[UUID, Progress]:
    """Return the progress of those of these tasks that run and have reported one, as their last heartbeat wrote it."""
    wanted = [identifier(one) for one in task_ids]
    if not wanted:
        return {}
    return store.run(lambda target: read_progress(target, wanted), using=using, begin=Begin.READ)


def read_progress(target: Target, task_ids: Collection[UUID]) -> dict[UUID, Progress]:
    """Return the progress of these tasks in this transaction."""
    packed = target.dialect.pack("asked", statements.ASKED, [(one,) for one in sorted(set(task_ids))])
    rows = target.run(statements.of_tasks, packed)
    return {row["id"]: Progress(fraction=row["progress"], note=row["progress_note"] or "") for row in rows}
