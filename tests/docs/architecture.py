"""Write the states in docs/explanation/architecture.md from the code: python -m tests.docs.architecture"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from outboxq.model import ENDS_CLAIM, STATUS_AFTER, TERMINAL, EventType, TaskStatus
from tests.docs.tables import put_between

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"

READY, RUNNING, FAILED = TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.FAILED
BEFORE: Mapping[EventType, frozenset[TaskStatus]] = {
    EventType.CREATED: frozenset(),
    EventType.CLAIMED: frozenset({READY}),
    EventType.COMPLETED: frozenset({RUNNING}),
    EventType.RETRY_SCHEDULED: frozenset({READY, RUNNING, FAILED}),
    EventType.FAILED: frozenset({READY, RUNNING}),
    EventType.RESET: frozenset({RUNNING}),
    EventType.ABANDONED: frozenset({RUNNING}),
    EventType.RELEASED: frozenset({RUNNING}),
    EventType.SNOOZED: frozenset({RUNNING}),
    EventType.CANCELLED: frozenset({READY, RUNNING}),
    EventType.CANCEL_REQUESTED: frozenset({RUNNING}),
    EventType.EXPIRED: frozenset({READY}),
    EventType.DISCARDED: frozenset({FAILED}),
    EventType.REPLACED: frozenset({READY}),
    EventType.REQUEUED: frozenset({FAILED}),
    EventType.RESCHEDULED: frozenset({READY}),
    EventType.STEP_COMPLETED: frozenset({RUNNING}),
    EventType.REWOUND: frozenset({READY}),
}
"""The possible statuses of a task when an event of each type is written. `tests/contract/test_states.py` tries all of them."""


def after(kind: EventType, before: TaskStatus) -> TaskStatus:
    """Return the status after an event of this type. A note does not change the status."""
    return STATUS_AFTER.get(kind, before)


def diagram() -> str:
    """Draw the statuses, with one arrow for each pair of statuses that an event connects. Events that do not change the status have no
    arrow.
    """
    arrows: dict[tuple[str, str], list[str]] = {}
    for kind, statuses in BEFORE.items():
        for before in [str(one) for one in TaskStatus if one in statuses] or ["[*]"]:
            following = str(STATUS_AFTER.get(kind, before))
            if following != before:
                arrows.setdefault((before, following), []).append(kind.value)
    lines = [f"    {before} --> {following}: {'<br/>'.join(kinds)}" for (before, following), kinds in arrows.items()]
    lines += [f"    {status} --> [*]" for status in TaskStatus if status in TERMINAL and not _is_left(status)]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def table() -> str:
    """List the status after each event, by the status before it."""
    lines = [
        f"| event | {' | '.join(TaskStatus)} | ends a claim |",
        f"|---|{'---|' * len(TaskStatus)}---|",
    ]
    for kind, statuses in BEFORE.items():
        cells = [str(after(kind, status)) if status in statuses else "" for status in TaskStatus]
        if not statuses:
            cells = [f"new: {STATUS_AFTER[kind]}", *cells[1:]]
        lines.append(f"| `{kind.value}` | {' | '.join(cells)} | {'yes' if kind in ENDS_CLAIM else ''} |")
    return "\n".join(lines) + "\n"


def _is_left(status: TaskStatus) -> bool:
    return any(status in statuses for statuses in BEFORE.values())


PARTS = {"diagram": diagram, "states": table}

if __name__ == "__main__":
    for name, part in PARTS.items():
        put_between(PAGE, name, part())
