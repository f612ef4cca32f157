"""A database that is measured, with helpers for tasks, times and verdicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outboxq.model import Claim, EventType, NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A database and its store."""

    url: str
    store: Store

    @property
    def kind(self) -> str:
        return self.store.bound_engine.dialect.name

    def scalar(self, sql: str) -> Any:
        with self.store.bound_engine.connect() as connection:
            return connection.exec_driver_sql(sql).scalar_one()


def new() -> NewTask:
    return NewTask(id=uuid7(), task_name="bench.nothing", args='{"number": 1}', queue="bench")


def completed(claim: Claim) -> Outcome:
    return Outcome(claim=claim, event_type=EventType.COMPLETED)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def said(holds: bool, goal: str) -> str:
    return "" if holds else f"   MISSES its goal, {goal}"


def libpq(url: str) -> str:
    return url.replace("+psycopg", "")
