"""The pages about relays to brokers: all relays, and a single relay with its shards."""

from __future__ import annotations

from datetime import datetime

from werkzeug.exceptions import NotFound

from ...errors import RelayNotFound
from ...model.relays import Relay, RelayState, state_of, task_of
from ...operating.verb import Noun, State
from ..request import PageRequest, View
from .actions import offered


def page(request: PageRequest) -> View:
    """Show all relays: first those with problems, then the others by name."""
    now, relays = request.store.now(), request.store.relays.list()
    found = sorted(((one, state_of(one)) for one in relays), key=lambda one: (_ORDER.index(one[1]), one[0].name))
    return View(template="relays.html", title="Relays", values={"now": now, "relays": found}, data=relays)


def one_page(request: PageRequest) -> View:
    """Show a relay with its backlog, its shards, and the keys that refused events hold. Raises NotFound."""
    name = request.query.get("name", "")
    try:
        detail = request.store.relays.show(name)
    except RelayNotFound:
        raise NotFound(f"There is no relay {name!r} to a broker.") from None
    now, found = detail.at, detail.relay
    values = {
        "now": now,
        "relay": found,
        "backlogs": {one.shard: one for one in detail.backlogs},
        "held_keys": detail.held_keys,
        "state": state_of(found),
        "queue": task_of(name),
        "acts": offered(request, Noun.RELAY, name, State(is_paused=_waits(found, now))),
        "start": request.typed("relay", "run"),
        "commands": [request.typed("relay", verb, name) for verb in ("pause", "resume")],
    }
    return View(template="relay.html", title=name, values=values, data=detail)


def _waits(relay: Relay, now: datetime) -> bool:
    return relay.paused_at is not None or (relay.next_try_at is not None and relay.next_try_at > now)


_ORDER = (RelayState.FAILING, RelayState.UNSENT, RelayState.PAUSED, RelayState.ACTIVE, RelayState.IDLE)
