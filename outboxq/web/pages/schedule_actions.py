"""Actions on schedules: pause, resume, and one task now."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import InvalidArgument, ScheduleNotFound
from ..request import PageRequest, Redirect


def pause(request: PageRequest) -> Redirect:
    """Pause a schedule, with a reason that names the viewer."""

    def act(name: str) -> str:
        request.store.schedules.pause(name, reason=by(request))
        return f"The schedule {name!r} is paused. Its planted ticks that were not due yet are cancelled."

    return _acted(request, act)


def resume(request: PageRequest) -> Redirect:
    """Resume a schedule."""

    def act(name: str) -> str:
        request.store.schedules.resume(name)
        return f"The schedule {name!r} is resumed. Its catch-up policy decides about the ticks since the pause."

    return _acted(request, act)


def trigger(request: PageRequest) -> Redirect:
    """Enqueue one task of a schedule now."""

    def act(name: str) -> str:
        found = request.store.schedules.trigger(name, by=by(request))
        return f"Task {found.id} of the schedule {name!r} is enqueued."

    return _acted(request, act)


def by(request: PageRequest) -> str:
    """Return the words for the history: who did it, and where."""
    return f"by {request.viewer.name} in the dashboard" if request.viewer.name else "in the dashboard"


def _acted(request: PageRequest, act: Callable[[str], str]) -> Redirect:
    name = request.query.get("name", "")  # as that of a queue
    try:
        return Redirect(url=request.url("schedule", name=name), notice=act(name))
    except ScheduleNotFound as error:
        return Redirect(url=request.url("schedules"), notice=f"Nothing was changed: {error}.", is_warning=True)
    except InvalidArgument as error:
        return Redirect(
            url=request.url("schedule", name=name), notice=f"Nothing was changed: {error}.", is_warning=True
        )
