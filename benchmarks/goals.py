"""The goals of the benchmark, and a check of whether a run met them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.queues import OUTBOXQ, RAW
from benchmarks.results import Results


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """The goal for a ratio, or for a number with a unit."""

    of: str
    value: float | None
    """The measured value; None if it was not measured."""
    bar: float | None = None
    """The value that must be reached; None if there is only a stretch goal."""
    stretch: float | None = None
    most: bool = False
    """True if the value must not exceed the bar; False if it must not fall below the bar."""
    unit: str = "x"

    def met(self, bar: float | None) -> bool | None:
        if bar is None or self.value is None:
            return None
        return self.value <= bar if self.most else self.value >= bar


def goals(results: Results) -> list[Goal]:
    return [*_postgresql(results), *_grown(results), *_sqlite(results)]


def _postgresql(results: Results) -> Iterator[Goal]:
    ratio = results.ratio
    drain, drain2 = "postgresql.drain", "postgresql.drain2"
    yield Goal(of="PostgreSQL drain, 1 process, of raw", value=ratio(drain, OUTBOXQ, RAW), bar=0.6, stretch=0.8)
    yield Goal(
        of="PostgreSQL drain, 1 process, of PgQueuer", value=ratio(drain, OUTBOXQ, "PgQueuer"), bar=1.5, stretch=2
    )
    yield Goal(of="PostgreSQL drain, 2 processes, of raw with 2", value=ratio(drain2, OUTBOXQ, RAW), bar=0.6)
    one, two = results.median(drain, OUTBOXQ), results.median(drain2, OUTBOXQ)
    both = two / one if one and two else None
    yield Goal(of="PostgreSQL drain, 2 processes, of 1 process", value=both, bar=1.4, stretch=1.7)
    caller = ratio("postgresql.caller", OUTBOXQ, RAW)
    yield Goal(of="enqueue in the caller's transaction, of text()", value=caller, bar=1.25, stretch=1.1, most=True)
    enqueue = "postgresql.enqueue"
    yield Goal(of="enqueue, own transaction, of PgQueuer", value=ratio(enqueue, OUTBOXQ, "PgQueuer"), bar=1)
    yield Goal(of="enqueue, own transaction, of raw", value=ratio(enqueue, OUTBOXQ, RAW), stretch=0.8)
    bulk = "postgresql.bulk"
    yield Goal(of="enqueue_many, of COPY", value=ratio(bulk, OUTBOXQ, RAW), bar=0.6, stretch=0.8)
    yield Goal(of="enqueue_many, of PgQueuer", value=ratio(bulk, OUTBOXQ, "PgQueuer"), bar=1.4)
    p50, p99 = (results.median(f"postgresql.pickup.{which}", OUTBOXQ) for which in ("p50", "p99"))
    yield Goal(of="pickup on PostgreSQL, p50", value=p50, bar=2.5, stretch=2, most=True, unit="ms")
    yield Goal(of="pickup on PostgreSQL, p99", value=p99, bar=5, most=True, unit="ms")
    for beside in ("workers busy", "no worker"):
        kept = ratio("postgresql.producers", f"trigger, {beside}", f"no trigger, {beside}")
        yield Goal(of=f"8 producers, trigger of no trigger, {beside}", value=kept, bar=0.85, stretch=0.95)
    yield from _claims(results, "postgresql", ("dead", "future"))
    memory = results.measures.get("postgresql.memory")
    first, second = (median for _, median in memory.medians()) if memory else (None, None)
    more = second / first if first and second else None
    yield Goal(of="memory of a worker after ten times the tasks", value=more, bar=1.05, most=True)


def _claims(results: Results, kind: str, sides: tuple[str, ...]) -> Iterator[Goal]:
    for limit in (1, 100):
        for side in sides:
            slower = results.ratio(f"{kind}.claim.{limit}", side, "clean")
            of = f"{_NAMES[kind]} claim of {limit} behind {side} rows, of clean"
            yield Goal(of=of, value=slower, bar=1.5, stretch=1.2, most=True)


_NAMES = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}


def _grown(results: Results) -> Iterator[Goal]:
    """Return the goals for large backlogs and old tables: the ratio to raw, divided by the same ratio on small tables."""
    for key, measure in results.measures.items():
        kind, what, *sizes = key.split(".")
        rows = f"{int(sizes[0]):,}" if what in {"backlog", "history", "buffers"} else ""
        if what == "buffers":
            of = f"buffers of a claim of {sizes[1]} behind {rows} finished, of behind none"
            yield Goal(of=of, value=measure.ratio("many", "few"), bar=1.15, most=True)
        for how in ("", " NORMAL", " FULL") if rows else ():
            ours, raw = OUTBOXQ + how, RAW + how
            of = f"{_NAMES[kind]}{how}, ratio to raw "
            if what == "backlog" and ours in measure.samples:
                value = _over(measure.ratio(ours, raw), results.ratio(f"{kind}.drain", ours, raw))
                yield Goal(of=f"{of}with a backlog of {rows}, of small", value=value, bar=0.9, stretch=1)
            if what == "history" and f"{ours}, many" in measure.samples:
                few, many = (measure.ratio(f"{ours}, {side}", f"{raw}, {side}") for side in ("few", "many"))
                yield Goal(of=f"{of}behind {rows} finished, of none", value=_over(many, few), bar=0.9, stretch=1)


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _sqlite(results: Results) -> Iterator[Goal]:
    for how in ("NORMAL", "FULL"):
        kept = results.ratio("sqlite.drain", f"{OUTBOXQ} {how}", f"{RAW} {how}")
        yield Goal(of=f"SQLite drain, of raw, {how}", value=kept, bar=0.4, stretch=0.6)
    huey, ours = "Huey FULL", f"{OUTBOXQ} FULL"
    yield Goal(of="SQLite drain, of Huey, both FULL", value=results.ratio("sqlite.drain", ours, huey), bar=5)
    enqueue = "sqlite.enqueue"
    yield Goal(of="SQLite enqueue, of Huey, both FULL", value=results.ratio(enqueue, ours, huey), bar=1)
    kept = results.ratio(enqueue, f"{OUTBOXQ} NORMAL", f"{RAW} NORMAL")
    yield Goal(of="SQLite enqueue, of raw, NORMAL", value=kept, stretch=0.4)
    p50 = results.median("sqlite.pickup.p50", ours)
    yield Goal(of="pickup on SQLite, p50", value=p50, bar=5, stretch=3, most=True, unit="ms")
    idle = results.median("sqlite.idle", ours)
    yield Goal(of="CPU of an idle worker on SQLite", value=idle, bar=2.5, most=True, unit="% of a core")
    yield from _claims(results, "sqlite", ("future",))
