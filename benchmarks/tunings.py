"""Measure the gain from each tuning of the statements: `python -m benchmarks.tunings`, or with `--on sqlite` and `--only NAME`.

Each call is made with and without one tuning, in turns, on separate databases. The figure compares the minimum CPU time
without the tuning to the minimum with it. The CPU time is that of this process and, on PostgreSQL, also that of the
server's process. Other processes on the machine affect it, so trust a figure only if the line `without nothing` is close
to 0.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

from sqlalchemy import null

from benchmarks.bench import server
from benchmarks.place import completed, new
from outboxq import migrations
from outboxq.database import column_types, dialects
from outboxq.database.dialects import plans
from outboxq.database.dialects.postgresql import PostgresGrammar
from outboxq.database.dialects.sqlite import SqliteGrammar
from outboxq.database.engine import make_engine
from outboxq.store import Store
from outboxq.store.claims import ends
from outboxq.store.producing import enqueue

BATCH = 100
Patch = tuple[Any, str, Any]


def every_column(_statement: Any, relations: Any, columns: Any) -> Any:
    return {name: columns[name] for name in columns_read(_statement, relations, columns)}


def two_forms(self: Any, _found: Any, *, constant: bool) -> Any:
    return self.constant if constant else self.packed


def never_single(self: Any, rows: Any) -> Any:
    constant, needless = batch_kind(self, rows)
    return (self._transition.constant_columns if constant == self._every_column else constant), needless


def generic_json(self: Any, name: str, value: Any) -> Any:
    return self.json(name=value)


def json_of_two(self: Any, text: Any = None, **pairs: Any) -> Any:
    """Add a NULL pair, which is dropped again, because the tuning applies only to a single pair."""
    return grammar_json(self, text, **pairs, nothing=null())


batch_kind = plans.OneStatement._kind
grammar_json = PostgresGrammar.json
columns_read = plans._columns_read
apart: list[Patch] = [
    (enqueue, "_rows", lambda tasks, **_: [enqueue.row(task) for task in tasks]),
    (ends, "_rows", lambda outcomes: [ends._row(outcome) for outcome in outcomes]),
]
"""The patches that split every batch into rows."""
TUNINGS: dict[str, list[Patch]] = {
    "nothing": [],
    "alike": apart,
    "constant": [*apart, *((module, "CONSTANT_COLUMNS", frozenset()) for module in (enqueue, ends))],
    "conditions": [(plans._Plan, "_needless", lambda _self, _rows: frozenset())],
    "single": [(plans._Step, "form", two_forms), (plans.OneStatement, "_kind", never_single)],
    "columns-read": [(plans, "_columns_read", every_column)],
    "ids-remembered": [(plans, "_uuid", plans._uuid.__wrapped__)],
    "arrays-as-text": [(column_types.Packed, "bind_processor", lambda _self, _dialect: None)],
    "plain-task": [(enqueue, "_checked", enqueue.check)],
    "plain-inserts": [(SqliteGrammar, "one_statement", True)],
    "json-of-one": [(PostgresGrammar, "json_of_one", generic_json)],
    "json-of-integer": [(PostgresGrammar, "json", json_of_two)],
}
"""Maps each tuning to the patches that undo it. `nothing` undoes none, so its figure is the error of the others."""


class Variant:
    """The calls with certain patches, with their own database and compiled statements."""

    def __init__(self, url: str, patches: list[Patch]) -> None:
        self._patches = [*patches, (dialects, "_dialect_for", lru_cache(dialects._dialect_for.__wrapped__))]
        self._worker = uuid4()
        self.least: dict[str, int] = {}
        with self._patched():
            migrations.upgrade(url)
            engine = make_engine(url)
            self._store = Store(engine)
            with engine.connect() as connection:  # the pool's only connection, which every call uses
                server = engine.dialect.name == "postgresql" and connection.exec_driver_sql("SELECT pg_backend_pid()")
                self._server = Path(f"/proc/{server.scalar_one()}/schedstat") if server else None

    def _clock(self) -> int:
        """Return the nanoseconds of CPU time used so far."""
        return time.process_time_ns() + (int(self._server.read_text().split()[0]) if self._server else 0)

    def turn(self, *, counts: bool) -> None:
        with self._patched():
            for many in (1, BATCH):
                tasks = [new() for _ in range(many)]
                self._timed(counts, f"enqueue {many}", lambda tasks=tasks: self._store.enqueue_many(tasks))
                claims = self._timed(
                    counts,
                    f"claim {many}",
                    lambda many=many: self._store.claim_ready_task(many, worker_id=self._worker, queues=["bench"]),
                )
                outcomes = [completed(claim) for claim in claims]
                self._timed(counts, f"end {many}", lambda outcomes=outcomes: self._store.finish(outcomes))

    def _timed(self, counts: bool, name: str, call: Callable[[], Any]) -> Any:
        began = self._clock()
        answer = call()
        took = self._clock() - began
        if counts:
            self.least[name] = min(took, self.least.get(name, took))
        return answer

    @contextmanager
    def _patched(self) -> Iterator[None]:
        with ExitStack() as stack:
            for patch in self._patches:
                stack.enter_context(mock.patch.object(*patch))
            yield


def measure(url: Callable[[str], str], patches: list[Patch], turns: int) -> dict[str, float]:
    """Return how much longer each call takes with these patches, as a fraction."""
    variants = [Variant(url("with"), []), Variant(url("without"), patches)]
    gc.collect()
    gc.disable()
    for turn in range(turns):
        for variant in variants if turn % 2 else reversed(variants):
            variant.turn(counts=turn >= turns // 5)
    gc.enable()
    tuned, undone = (variant.least for variant in variants)
    return {name: undone[name] / tuned[name] - 1 for name in tuned}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tunings", description=__doc__)
    parser.add_argument("--on", choices=("sqlite", "postgresql"), help="measure only this database")
    parser.add_argument("--only", action="append", choices=TUNINGS, help="measure only this tuning; may be repeated")
    parser.add_argument("--turns", type=int, default=200)
    given = parser.parse_args()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    for kind in [given.on] if given.on else ["sqlite", "postgresql"]:
        with (
            server() if kind == "postgresql" else nullcontext() as cluster,
            tempfile.TemporaryDirectory(dir=memory) as at,
        ):
            for name in given.only or TUNINGS:

                def url(place: str, name: str = name) -> str:
                    return f"sqlite:///{at}/{name}-{place}.db" if cluster is None else cluster.create_database()

                found = measure(url, TUNINGS[name], given.turns)
                said = "  ".join(f"{call} {part:+6.1%}" for call, part in found.items())
                print(f"{kind:10}  without {name:20}  {said}", flush=True)


if __name__ == "__main__":
    main()
