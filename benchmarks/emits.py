"""Measure how much relays slow down `emit`: `python -m benchmarks.emits`, or `nox -s bench_emits`.

One task subscribes to the events. Each event is emitted in a separate transaction on PostgreSQL. One process emits events
in three databases, in turns:

* without a relay;
* with a relay to a broker whose topic does not match;
* with a relay whose topic matches, which adds a row to `relay_messages`.

A fourth turn inserts such a row by hand in the database without a relay, so that the cost of a relay can be compared with
that of a row. No sender publishes the events. The figures are medians of all calls.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine, create_engine, text

from benchmarks.bench import SERVER
from outboxq import CloudEvent, Confirmed, Outbox
from outboxq.model.transports import Outcome
from tests import postgres

_TOPIC = "order.paid"
_PAYLOAD = {"order_id": 17, "customer": "ada", "lines": [{"sku": "A-1", "quantity": 2}]}
_BLOCK = 20
"""The number of transactions in a turn. Turns are short, so that a busy machine delays all ways equally."""
_WAYS = {"no relay": None, "a relay to other topics": "invoice.*", "a relay to the topic": "order.*"}
_ROW = "a row by hand"
_BY_HAND = text(
    "CREATE TABLE by_hand (position bigserial PRIMARY KEY, relay integer, key text, topic text, "
    "id uuid DEFAULT gen_random_uuid(), at timestamptz, data text)"
)


class _Nowhere:
    """The transport of a relay that no worker runs."""

    def publish(self, events: Sequence[CloudEvent], deadline: float) -> Sequence[Outcome]:
        del deadline
        return [Confirmed() for _ in events]

    def close(self) -> None:
        """Do nothing."""


@dataclass
class _Times:
    """The seconds of each call, and of each call with its commit."""

    calls: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)


def main() -> int:
    given = _arguments()
    cluster = postgres.start(prefer="own", durable=True, settings=SERVER)
    urls = {name: cluster.create_database() for name in _WAYS}
    try:
        found = _measure(urls, given.rounds)
    finally:
        for url in urls.values():
            cluster.drop_database(url)
    _print(found)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emits", description=__doc__)
    parser.add_argument("--rounds", type=int, default=150, help=f"number of rounds of {_BLOCK} events in each way")
    return parser.parse_args()


def _measure(urls: dict[str, str], rounds: int) -> dict[str, _Times]:
    engines = {name: create_engine(url) for name, url in urls.items()}
    ways = [(name, engine, _emitting(engine, _WAYS[name])) for name, engine in engines.items()]
    ways.append((_ROW, engines["no relay"], _inserting(engines["no relay"])))
    for _, engine, write in ways:
        _turn(engine, write, _Times())
    found: dict[str, _Times] = defaultdict(_Times)
    for number in range(rounds):
        for place in range(len(ways)):
            name, engine, write = ways[(number + place) % len(ways)]
            _turn(engine, write, found[name])
    for engine in engines.values():
        engine.dispose()
    return {name: found[name] for name, *_ in ways}


def _emitting(engine: Engine, topic: str | None) -> Callable[[Connection], object]:
    outbox = Outbox(engine, source="shop")
    outbox.upgrade()

    @outbox.task(name="bench.nothing", queue="bench", subscribe=_TOPIC)
    def nothing(payload: dict[str, object]) -> None: ...

    if topic is not None:
        outbox.relay(topic, to=_Nowhere(), name="bench")
    outbox.sync_subscriptions()
    with engine.begin() as connection:
        relays = outbox.emit(_TOPIC, _PAYLOAD, using=connection, partition_key="ada").relays
        assert len(relays) == (topic == "order.*"), relays
    return lambda connection: outbox.emit(_TOPIC, _PAYLOAD, using=connection, partition_key="ada")


def _inserting(engine: Engine) -> Callable[[Connection], object]:
    with engine.begin() as connection:
        connection.execute(_BY_HAND)
    row = {"relay": 1, "key": "ada", "topic": _TOPIC, "data": '{"order_id": 17, "customer": "ada", "quantity": 2}'}
    insert = text("INSERT INTO by_hand (relay, key, topic, at, data) VALUES (:relay, :key, :topic, now(), :data)")
    return lambda connection: connection.execute(insert, row)


def _turn(engine: Engine, write: Callable[[Connection], object], times: _Times) -> None:
    with engine.connect() as connection:
        for _ in range(_BLOCK):
            with connection.begin() as transaction:
                connection.execute(text("SELECT 1"))  # an application has also begun its transaction before it emits
                began = time.perf_counter()
                write(connection)
                written = time.perf_counter()
                transaction.commit()
                times.calls.append(written - began)
                times.commits.append(time.perf_counter() - began)


def _print(found: dict[str, _Times]) -> None:
    base = found["no relay"]
    print("| emit with | call | of no relay | with the commit | of no relay |\n|---|---|---|---|---|")
    for name, times in found.items():
        cells = []
        for mine, theirs in ((times.calls, base.calls), (times.commits, base.commits)):
            middle = statistics.median(mine)
            cells += [f"{middle * 1e6:.0f} us", f"{middle / statistics.median(theirs):.3f}"]
        print(f"| {name} | {' | '.join(cells)} |")
    added, row = (statistics.median(found[name].calls) for name in ("a relay to the topic", _ROW))
    added -= statistics.median(base.calls)
    print(f"the relay to the topic adds {added * 1e6:.0f} us to a call, and a row by hand takes {row * 1e6:.0f} us")
    blocks = [statistics.median(base.calls[start : start + _BLOCK]) for start in range(0, len(base.calls), _BLOCK)]
    low, _, high = statistics.quantiles(blocks, n=4)
    print(f"half of the turns without a relay lie between {low * 1e6:.0f} and {high * 1e6:.0f} us a call")


if __name__ == "__main__":
    sys.exit(main())
