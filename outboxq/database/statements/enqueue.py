"""Write new tasks: outbox entry, execution and event, for one task or thousands, in one chain."""

from __future__ import annotations

from ...store.task_rows import CONSTANT_COLUMNS, NEW_TASK, new_entry, new_event, new_execution
from ..grammar import Grammar, Transition


def enqueue(g: Grammar) -> Transition:
    """Write new tasks without idempotency keys."""
    return Transition(
        given=NEW_TASK,
        constant_columns=CONSTANT_COLUMNS,
        steps={
            "entry": lambda r: new_entry(g, r["given"].c, r["given"], r["given"]),
            "execution": lambda r: new_execution(g, r),
            "event": lambda r: new_event(g, r["given"], r["entry"]),
        },
    )
