"""Check that relays to brokers, their shards, their topics and their messages belong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from ...database.grammar import Grammar
from ...database.tables import relay_messages, relay_shards, relays, task_subscriptions
from ...model.relays import RELAY_PREFIX
from .check import Check

_r, _s, _m = relays.c, relay_shards.c, relay_messages.c
_topic = task_subscriptions.c
_name_of_topic = sa.func.substr(_topic.task_name, sa.literal_column(str(len(RELAY_PREFIX) + 1)), type_=sa.Text)


def relay_checks() -> Mapping[str, Check]:
    return {
        "message_without_relay": Check(
            meaning="an event waits for a relay that does not exist, so no worker publishes it; declare the relay again, or "
            "delete the row from relay_messages",
            broken=lambda _: sa.select(_m.relay.label("id")).where(~_relay(_m.relay).exists()).distinct(),
        ),
        "topic_without_relay": Check(
            meaning="a topic belongs to a relay that does not exist, so its events are written and never published; start a "
            "worker that declares the relay, or remove the subscription",
            broken=lambda _: (
                sa.select(_topic.task_name.label("id"))
                .where(_topic.parameter.is_(None), ~_relay(_name_of_topic).exists())
                .distinct()
            ),
        ),
        "shard_without_relay": Check(
            meaning="a shard belongs to a relay that does not exist, or has a number that the relay does not have",
            broken=lambda _: (
                sa.select(_s.relay.label("id")).where(~_relay(_s.relay, _s.shard < _r.shards).exists()).distinct()
            ),
        ),
        "shard_missing": Check(
            meaning="a relay has fewer shards than it is declared with, so some of its events are never published; change its "
            "number of shards and start a worker",
            broken=_shard_missing,
        ),
        "shard_lease_without_worker": Check(
            meaning="a shard has a worker without a time at which its lease ends, so no other worker takes over",
            broken=lambda _: sa.select(_s.relay.label("id")).where(
                _s.worker_id.is_not(None), _s.lease_expires_at.is_(None)
            ),
        ),
    }


def _relay(name: sa.ColumnElement[Any], *where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(_r.name).where(_r.name == name, *where).correlate(relay_messages, relay_shards, task_subscriptions)


def _shard_missing(_: Grammar) -> sa.Select[Any]:
    number = sa.select(sa.func.count()).where(_s.relay == _r.name).correlate(relays).scalar_subquery()
    return sa.select(_r.name.label("id")).where(number < _r.shards)
