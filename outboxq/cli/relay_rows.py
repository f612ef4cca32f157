"""Tables of relays to brokers and of receivers, for `outboxq relay list`, `outboxq status` and `outboxq workers show`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from ..model.relays import COUNTED, state_of
from ..model.wording import brief
from ..model.workers import SourceState

if TYPE_CHECKING:
    from ..store import Store

RELAY_HEAD: Final = (
    "relay",
    "state",
    "waiting",
    "oldest",
    "refused",
    "redriven",
    "shards",
    "sent by",
    "topics",
    "last error",
)
RELAY_SPARE: Final = ("topics", "last error", "sent by", "shards", "oldest", "redriven")
"""The columns that a narrow terminal leaves out first."""

RECEIVER_HEAD: Final = ("received from", "state", "for", "workers", "tasks", "last error")
RECEIVER_SPARE: Final = ("tasks", "last error")


def relay_rows(store: Store) -> list[tuple[object, ...]]:
    """Return a row for each relay. A + after a count means that there are more."""
    now = store.now()
    rows: list[tuple[object, ...]] = []
    for one in store.relays.list():
        owners = dict.fromkeys(shard.worker or str(shard.worker_id) for shard in one.shards if shard.worker_id)
        rows.append(
            (
                one.name,
                state_of(one).value,
                f"{one.messages}{'+' * (one.messages >= COUNTED)}",
                None if one.oldest_at is None else brief(now - one.oldest_at),
                one.dead_letters,
                one.redriven,
                len(one.shards),
                ", ".join(owners) or None,
                ", ".join(one.topics),
                one.last_error if one.failing_since else None,
            )
        )
    return rows


def receiver_rows(now: datetime, sources: Iterable[SourceState]) -> list[tuple[object, ...]]:
    """Return a row for each source, with the time since it began to fail."""
    return [
        (
            one.source,
            one.state,
            None if one.failing_since is None else brief(max(now - one.failing_since, timedelta(0))),
            f"{one.failing} of {one.workers}" if one.failing else one.workers,
            ", ".join(one.tasks),
            one.last_error,
        )
        for one in sources
    ]
