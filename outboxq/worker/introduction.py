"""The first line of a worker in its log. It answers what is asked first when a task does not run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ..store import Store

log = logging.getLogger("outboxq.worker")

_MOST = 10
"""The largest number of names that are written out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Introduction:
    """The database and the tasks of a worker, and how it notices new ones."""

    store: Store
    queues: Sequence[str] | None
    topics: Sequence[str] | None
    concurrency: int
    hears: str
    task_names: Sequence[str]

    def log_start(self, label: str, worker_id: UUID, *, in_full: bool) -> None:
        """Log that the worker has started. `in_full`: and where and on what it works, also as fields of the record."""
        if in_full:
            log.info("worker %s (%s) started %s", label, worker_id, self, extra=self.fields)
        else:
            log.info("worker %s (%s) started", label, worker_id)

    def __str__(self) -> str:
        where = self.store.dialect.place(self.store.bound_engine.url, lambda: None)
        queues = "all queues" if self.queues is None else f"the {_counted(self.queues, 'queue')}"
        topics = "" if self.topics is None else f", only tasks of the topics {_named(self.topics)}"
        known = f"knows {_counted(self.task_names, 'task')}" if self.task_names else "knows no task"
        return f"on {where}: {queues}{topics}, {self.concurrency} at once; {self.hears}; {known}"

    @property
    def fields(self) -> dict[str, Any]:
        """The same values for programs that read the log."""
        return {
            "database": self.store.dialect.address(self.store.bound_engine.url),
            "schema": self.store.schema,
            "queues": self.queues,
            "topics": self.topics,
            "concurrency": self.concurrency,
            "hears": self.hears,
            "tasks": len(self.task_names),
            "task_names": self.task_names[:_MOST],
        }


def _counted(names: Sequence[str], noun: str) -> str:
    return f"{noun} {names[0]}" if len(names) == 1 else f"{len(names)} {noun}s {_named(names)}"


def _named(names: Sequence[str]) -> str:
    left = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {left} more" if left > 0 else "")
