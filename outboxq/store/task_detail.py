"""A task with everything that a page about it shows, as of one moment and in at most five statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.grammar import Builder
from ..database.statements import explaining
from ..database.statements import task_detail as statements
from ..database.target import Rows, Target
from ..model import ExecutionEvent, TaskExecution
from .arguments import identifier, positive
from .claims import limits_sql, workers
from .explaining import explanation_of, running_progress
from .reasons import Explanation
from .tasks import tasks
from .tasks.tasks import event_of, execution_of, no_task
from .transactions import Transactions

_EVENTS = 100
_COLUMNS = tuple(one.name for one in fields(TaskExecution))


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDetail:
    """A task, the reason why it does not run, and its newest events."""

    at: datetime
    """The moment that all of it is of, by the database's clock."""
    task: TaskExecution
    explanation: Explanation
    events: list[ExecutionEvent]
    """The newest events, oldest first."""
    is_cut: bool
    """True if there are older events."""
    due_at: datetime | None
    """Due time of a Ready task; None in any other status."""
    holds_key: bool
    """True if it is a dead letter whose partition key waits for it."""
    exception: str | None
    """Class of the exception of a dead letter."""
    idempotency_key: str | None
    lost_key: str | None
    """Idempotency key of a dead letter that another task has taken over."""
    workers: Mapping[UUID, str]
    """Labels of the workers that the events name, as far as they are registered."""


def task_detail(store: Transactions, task_id: UUID, *, events: int = _EVENTS, using: object = None) -> TaskDetail:
    """Return a task with the reason why it does not run, and its newest `events` events. Raises TaskNotFound."""
    values = {"task_id": identifier(task_id), "limit": positive(events, "events") + 1}

    def work(target: Target) -> TaskDetail:
        found = target.run(statements.one, store.values(target, **values))
        if not found:
            raise no_task(task_id)
        row = found[0]
        task = execution_of({name: row[name] for name in _COLUMNS})
        newest = target.run(tasks.select_recent_history, values)
        history = newest[events - 1 :: -1]
        read = _Answered(target, _answers(row, history))
        why = explanation_of(store, read, task, row["now"], running_progress(target, task))
        shown = [event_of(event) for event in history]
        return TaskDetail(
            at=row["now"],
            task=task,
            explanation=why,
            events=shown,
            is_cut=len(newest) > events,
            due_at=row["entry_available_at"],
            holds_key=bool(row["key_held"]) and row["key_owner"] == task.id,
            exception=row["dead_letter_exception"],
            idempotency_key=row["idempotency_key"],
            lost_key=row["lost_key"],
            workers=read.labels({event.worker_id for event in shown} | {task.worker_id}),
        )

    return store.run(work, using=using, begin=Begin.SNAPSHOT)


def _answers(row: Row, history: Sequence[Row]) -> dict[Builder, list[Row]]:
    """Return the rows that the statements of `explain` would find, by the statement."""
    entry = {name: row[f"entry_{name}"] for name in ("id", "available_at", "priority")}
    owner = {"task_execution_id": row["key_owner"], "held": row["key_held"]}
    head = {"task_execution_id": row["key_head"], "available_at": row["key_head_due"]}
    return {
        explaining.entry: [entry] if entry["id"] is not None else [],
        explaining.settings: [{name: row[f"queue_{name}"] for name in explaining.SETTINGS}],
        explaining.holder: [owner] if row["key_owner"] is not None else [],
        explaining.head: [head] if row["key_head"] is not None else [],
        limits_sql.running: [{"tasks": row["queue_running"]}],
        tasks.select_history: list(history),
    }


class _Answered(Target):
    """A target that has the answers to some statements already, and remembers the workers that it has read."""

    def __init__(self, target: Target, answers: Mapping[Builder, list[Row]]) -> None:
        super().__init__(target.dialect)
        self._target, self._answers = target, answers
        self._labels: dict[UUID, str] = {}

    def run(
        self, builder: Builder, values: Mapping[str, Any] = {}, rows: Sequence[Sequence[Any]] | None = None
    ) -> list[Row]:
        if (known := self._answers.get(builder)) is not None:
            return known
        found = self._target.run(builder, values, rows)
        if builder in {workers.live, workers.one}:
            self._labels |= {row["id"]: row["label"] for row in found}
        return found

    def labels(self, wanted: Iterable[UUID | None]) -> Mapping[UUID, str]:
        """Return the labels of these workers. Those that were read for the explanation cost nothing."""
        if missing := {one for one in wanted if one is not None} - self._labels.keys():
            packed = self.dialect.pack("named", statements.NAMED, [(one,) for one in sorted(missing)])
            self._labels |= {row["id"]: row["label"] for row in self._target.run(statements.labels, packed)}
        return self._labels

    def execute(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return self._target.execute(sql, parameters)

    def check(self) -> None:
        self._target.check()

    def database(self) -> str | None:
        return self._target.database()

    def _raw(self) -> object:
        return self._target._raw()  # noqa: SLF001 - it stands for that target
