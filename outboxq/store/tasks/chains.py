"""Find the dead letters that must not run again because the result of the previous task in their chain was deleted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database.grammar import Columns, Grammar, SqlStatus, sql_literal
from ...database.tables import task_batches, task_executions
from ...database.target import Target
from ...errors import InvalidTransition
from ...model.batches import BatchKind, link_of


def futile_redrives(target: Target, task_ids: Collection[UUID]) -> Mapping[UUID, InvalidTransition]:
    """Return an error for each of these tasks whose previous task in the chain was deleted. The database is not queried
    if none of the tasks is part of a chain.
    """
    links = {task_id: link for task_id in task_ids if (link := link_of(task_id)) is not None and link.number}
    if not links:
        return {}
    rows = [(task_id, link.batch_id, link.before) for task_id, link in links.items()]
    found = target.run(links_without_previous, target.dialect.pack("links", LINKS, rows))
    return {
        row["id"]: InvalidTransition(
            f"task {row['id']} cannot be redriven: the task before it in its chain, {row['before']}, was deleted with its "
            "result; discard this task, and enqueue the rest of the chain again"
        )
        for row in found
    }


LINKS: Columns = {"id": sa.Uuid(), "batch_id": sa.Uuid(), "before": sa.Uuid()}


def links_without_previous(g: Grammar) -> sa.Select[Any]:
    """Select the dead letters among these tasks whose previous task in the chain was deleted, with the ids of both
    tasks.
    """
    link, before = g.rows("links", LINKS), task_executions.alias("before")
    # This is not a join, because a join might read all tasks.
    known = sa.select(before.c.id).where(before.c.id == link.c.before).correlate(link).scalar_subquery()
    batch, execution = task_batches.c, task_executions.c
    rows = task_batches.join(link, link.c.batch_id == batch.id).join(task_executions, execution.id == link.c.id)
    is_chain = (g.among(batch.id, link.c.batch_id), batch.kind == sql_literal(BatchKind.CHAIN))
    is_dead = (g.among(execution.id, link.c.id), execution.status == SqlStatus.FAILED)
    return sa.select(link.c.id, link.c.before).select_from(rows).where(*is_chain, *is_dead, known.is_(None))
