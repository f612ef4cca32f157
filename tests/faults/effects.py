"""The rows that the handler `stepped` of the fault tests writes."""

from __future__ import annotations

from uuid import UUID, uuid5


def effect_of(task_id: UUID, number: int) -> str:
    """Return the row that a step of `stepped` writes."""
    return uuid5(task_id, str(number)).hex


def effects_of(task_id: UUID, count: int = 3) -> list[str]:
    """Return the rows that `stepped` writes, each once."""
    return [effect_of(task_id, number) for number in range(count) if number % 3 == 1 and number % 10 != 9]
