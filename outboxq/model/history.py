"""The events of a task as people read them: releases that repeat themselves make one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .records import UNKNOWN_TASK, EventType, ExecutionEvent


def summed_up(events: Sequence[ExecutionEvent]) -> Iterator[tuple[ExecutionEvent, Sequence[ExecutionEvent]]]:
    """Yield each event, with the releases that it sums up.

    A task that no worker knows is claimed and given back again and again. All these events make one line: the last release,
    with the others. Any other event sums up none.
    """
    run: list[ExecutionEvent] = []
    for index, event in enumerate(events):
        if _is_unknown(event):
            run.append(event)
        elif event.event_type is EventType.CLAIMED and index + 1 < len(events) and _is_unknown(events[index + 1]):
            continue
        else:
            if run:
                yield run[-1], run
            run = []
            yield event, ()
    if run:
        yield run[-1], run


def _is_unknown(event: ExecutionEvent) -> bool:
    return event.event_type is EventType.RELEASED and event.event_data.get("reason") == UNKNOWN_TASK
