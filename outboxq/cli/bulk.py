"""Change all tasks that match filters: ask, show the progress, print the result, and record the action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from ..operating.verb import Verb
from .changes import FEW, Exactly, changed, confirmed, outcome, present_operator, progress, up_to
from .console import tell
from .filters import ensure_known, none_matched
from .parameters import in_words

if TYPE_CHECKING:
    from ..store import Count, Store


def recorded_change(
    store: Store, verb: Verb, wanted: Mapping[str, Any], limit: int | None, reason: str
) -> dict[str, Any]:
    """Return the arguments with which a bulk change is recorded, in the histories of its tasks and as an action."""
    operator = present_operator()
    details = {**wanted, **({} if limit is None else {"limit": limit})}
    action = verb.action(operator, details=details, reason=reason)
    return {"reason": operator.because(reason), "on_change": store.actions.adding(action)}


def change_all(
    store: Store,
    wanted: Mapping[str, Any],
    act: Callable[..., int],
    count: Callable[[], Count],
    first: Callable[[int], list[str]],
    *,
    limit: int | None,
    noun: str,
    verb: str,
    done: str,
    sentence: str = "",
    others: str,
    **answers: bool,
) -> None:
    """Act on the tasks that match and were counted. `sentence` describes the result; by default it is `done`."""
    counted, what = cache(count), in_words(noun, wanted, limit=limit, verb=verb)

    def to_change() -> Exactly | Count:
        return up_to(limit, counted())

    if not counted().number:
        ensure_known(store, wanted)
    if not confirmed(to_change, what, done=done, first=lambda: first(min(FEW, limit or FEW)), **answers):
        return
    if not counted().number:
        tell(none_matched(store, noun, wanted), changed(done, 0, to_change()))
        return
    with progress(done, to_change(), stoppable=True) as on_progress:
        moved = act(snapshot=counted().snapshot, on_progress=on_progress, stop=on_progress.stop)
    tell(outcome(sentence or done, moved, to_change(), others), changed(done, moved, to_change()))
