"""Actions on queues: pause, resume, limits, and the order of keys."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from ...errors import InvalidArgument
from ..request import PageRequest, Redirect


def pause(request: PageRequest) -> Redirect:
    """Pause a queue."""
    name = _name(request)
    request.store.queues.pause(name)
    return _done(request, name, f"The queue {name!r} is paused: none of its tasks is started. What runs, runs on.")


def resume(request: PageRequest) -> Redirect:
    """Resume a queue."""
    name = _name(request)
    request.store.queues.resume(name)
    return _done(request, name, f"The queue {name!r} is resumed.")


def limit(request: PageRequest) -> Redirect:
    """Set the limits of a queue and of its keys; an empty field removes one."""
    name = _name(request)
    try:
        limits: dict[str, Any] = {
            "concurrency": _whole(request, "concurrency", "at once"),
            "rate": _rate(request, "starts", "seconds"),
            "concurrency_per_key": _whole(request, "key_concurrency", "at once of a key"),
            "rate_per_key": _rate(request, "key_starts", "key_seconds"),
        }
        request.store.queues.limit(name, **limits)
    except InvalidArgument as error:
        return _refused(request, name, error)
    return _done(request, name, f"The limits of the queue {name!r} are changed.")


def order(request: PageRequest) -> Redirect:
    """Set the order of a queue's partition keys."""
    name, first = _name(request), request.form.get("first")
    if first not in {"turns", "oldest"}:
        return _refused(request, name, InvalidArgument("choose an order: turns or oldest"))
    request.store.queues.order(name, fair=first == "turns")
    words = "partition keys take turns" if first == "turns" else "the task that is due the longest starts first"
    return _done(request, name, f"In the queue {name!r} {words}.")


def _name(request: PageRequest) -> str:
    """Return the queue's name. It stands in the URL: a form field would not keep a lone line break or an invisible character."""
    return request.query.get("name", "")


def _whole(request: PageRequest, field: str, words: str) -> int | None:
    text = request.form.get(field, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise InvalidArgument(f"{words} must be a whole number from 1 to 999 999 999, or empty, not {text[:40]!r}")
    return int(text)


def _rate(request: PageRequest, starts: str, seconds: str) -> tuple[int, timedelta] | None:
    number, span = _whole(request, starts, "starts"), request.form.get(seconds, "").strip()
    if (number is None) != (not span):
        raise InvalidArgument("a rate needs a number of starts and its seconds; give both, or neither")
    return None if number is None else (number, timedelta(seconds=_seconds(span)))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 1e9:
        raise InvalidArgument(f"the seconds of a rate must be a number above 0, not {text[:40]!r}")
    return seconds


def _done(request: PageRequest, name: str, notice: str) -> Redirect:
    return Redirect(url=_back(request, name), notice=notice)


def _refused(request: PageRequest, name: str, error: InvalidArgument) -> Redirect:
    return Redirect(url=_back(request, name), notice=f"Nothing was changed: {error}.", is_warning=True)


def _back(request: PageRequest, name: str) -> str:
    """Return the address of the queue's page; that of all queues if the queue is unknown, as its page shows no notice."""
    return request.url("queue", name=name) if request.store.queues.is_known(name) else request.url("queues")
